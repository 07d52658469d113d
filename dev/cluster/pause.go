// The image every pod holds its namespaces with, and the one the cluster checks itself with.
//
//	pause                 sleep until told to end
//	pause resolve NAME    end well if the cluster's DNS knows the name
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == "resolve" {
		addresses, err := net.LookupHost(os.Args[2])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(addresses)
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}
