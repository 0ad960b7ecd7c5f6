//go:build linux

// Command bench measures egressd beside other forward proxies, and beside no
// proxy at all, on loopback and in one run. It brings its own load generator,
// origins and name server, starts every proxy itself, and leaves nothing
// running behind. Its figures are ratios and CPU time an operation: absolute
// rates mean nothing on another machine.
//
//	cd bench && go run . -egressd ../build/egressd -peers "smokescreen squid"
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

// main also serves the roles that bench starts itself in, so that load,
// origins and measurement never share a process.
func main() {
	runtime.LockOSThread() // children die with the thread that started them
	var err error
	switch role := os.Getenv(roleVariable); role {
	case "origin":
		err = serveOrigins(os.Stdin, os.Stdout)
	case "echo":
		err = serveEcho(os.Stdin, os.Stdout)
	case floorHTTP:
		err = serveHTTPFloor(os.Args[1])
	case floorEpoll:
		err = serveEpollFloor(os.Args[1])
	case "load":
		err = serveJobs(os.Stdin, os.Stdout)
	default:
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		err = run(ctx, os.Args[1:], os.Stdout, os.Stderr)
		stop()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: error: %v\n", err)
		os.Exit(1)
	}
}
