package run

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/egressd/egressd/internal/tty"
)

const (
	autoPort  = "auto"                 // of -p
	autoLook  = 200 * time.Millisecond // between two looks at the servers of the sandbox
	autoMost  = 16                     // ports that are published at a time
	autoLeast = 1024                   // the lowest port: programs of the host trust lower ones
	autoNos   = 3                      // ports that a person refuses until no more are asked about
)

// publishAuto publishes the ports that programs in the sandbox listen on, while they do, until ctx is done. It asks on terminal
// before each. If terminal is nil, the flag is the answer.
func (r *runner) publishAuto(ctx context.Context, own []uint16, terminal *os.File) {
	published := map[uint16][]net.Listener{}
	settled := map[uint16]bool{} // refused, in use, or published by another flag
	agreed := map[uint16]bool{}  // by a person, or by the flag
	nos := 0
	for _, port := range own {
		settled[port] = true
	}
	for _, p := range r.inside {
		settled[p.inside] = true
	}
	for {
		select {
		case <-time.After(autoLook):
		case <-ctx.Done():
			return
		}
		now := autoPorts(r.sockets.Programs.Listeners())
		for port, listeners := range published {
			if !slices.Contains(now, port) {
				for _, l := range listeners {
					r.ports.drop(l)
				}
				delete(published, port)
				_ = r.ports.tell(r.talk, fmt.Sprintf("port %d of the sandbox is no longer published", port))
			}
		}
		for _, port := range now {
			if settled[port] || published[port] != nil || len(published) >= autoMost {
				continue
			}
			listeners, err := onLoopback(port)
			if err != nil {
				settled[port] = true
				if !r.awaitLines(ctx) {
					return
				}
				r.talk.Say(fmt.Sprintf("egressd: port %d of the sandbox is not published: the host uses it\n", port))
				continue
			}
			if !agreed[port] {
				yes, later := r.mayPublish(ctx, terminal, port)
				if agreed[port] = yes; !yes {
					closeAll(listeners)
					if settled[port] = !later; !later {
						nos++
					}
				}
				if nos >= autoNos {
					return
				}
				if !yes {
					continue
				}
			}
			what := fmt.Sprintf("127.0.0.1:%d leads to port %d of the sandbox", port, port)
			if err := r.ports.tell(r.talk, what); err != nil {
				closeAll(listeners)
				return
			}
			for _, l := range listeners {
				r.ports.serve(l, func(c *net.TCPConn) { r.ports.goInside(c, port) })
			}
			published[port] = listeners
		}
	}
}

// autoPorts are the ports of servers that take connections on loopback.
func autoPorts(all []netip.AddrPort) (ports []uint16) {
	for _, at := range all {
		if at.Port() >= autoLeast && (at.Addr().IsLoopback() || at.Addr().IsUnspecified()) && !slices.Contains(ports, at.Port()) {
			ports = append(ports, at.Port())
		}
	}
	slices.Sort(ports)
	return ports
}

// onLoopback listens on a port of the host's loopback. A port that anybody uses on one of its addresses is an error: a browser may
// take either for localhost.
func onLoopback(port uint16) (all []net.Listener, err error) {
	for i, network := range []string{"tcp4", "tcp6"} {
		l, err := net.Listen(network, net.JoinHostPort(loopbacks[i].String(), strconv.Itoa(int(port))))
		if err != nil && (i == 0 || isInUse(err)) {
			closeAll(all)
			return nil, err
		}
		if err == nil {
			all = append(all, l)
		}
	}
	return all, nil
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		l.Close()
	}
}

// mayPublish asks on the terminal, if there is one. later reports that this run does not have it now, or that the program cannot
// be stopped meanwhile.
func (r *runner) mayPublish(ctx context.Context, terminal *os.File, port uint16) (yes, later bool) {
	if terminal == nil {
		return true, false
	}
	r.prompt.Lock()
	defer r.prompt.Unlock()
	if group := tty.Foreground(terminal); group == 0 || group != syscall.Getpgrp() && !r.jail.Holds(group) {
		return false, true
	}
	signal.Ignore(syscall.SIGTTOU) // as askAll does
	text := fmt.Sprintf("\r\negressd: question: the program listens on port %d; publish it on 127.0.0.1 of this machine? y or n ", port)
	asked := r.askKey(terminal, func() { fmt.Fprint(terminal, text) }, func() bool {
		return ctx.Err() != nil || !slices.Contains(autoPorts(r.sockets.Programs.Listeners()), port)
	}, func(key byte) {
		yes = key|0x20 == 'y'
		fmt.Fprintf(terminal, "%s\r\n", map[bool]string{true: "yes", false: "no"}[yes])
	})
	return yes, !asked
}
