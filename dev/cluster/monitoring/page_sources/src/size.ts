import { useEffect, useRef, useState } from 'react';

export interface Size {
  width: number;
  height: number;
}

/** The width of an element, now and after every change of the window. */
export function useWidth() {
  const element = useRef<HTMLDivElement>(null);
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const observer = new ResizeObserver(([entry]) => setWidth(entry.contentRect.width));
    observer.observe(element.current!);
    return () => observer.disconnect();
  }, []);
  return { element, width };
}
