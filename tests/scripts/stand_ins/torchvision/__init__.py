"""As much of torchvision as timm imports: its builds from a package registry import with torch's CUDA build alone."""
