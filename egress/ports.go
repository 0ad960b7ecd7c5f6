package egress

import (
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
)

// localPorts returns how many connections towards one place may begin in a minute, by the
// settings of the kernel: a little less than half of its local ports. It takes every second
// port first, and once these are used up each connect(2) looks at all of them.
func localPorts() int {
	if text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_tw_reuse"); err == nil && strings.TrimSpace(string(text)) == "1" {
		return 0 // a port is free again after a second
	}
	first, last := 32768, 60999 // ip-sysctl(7)
	if text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err == nil {
		if f := strings.Fields(string(text)); len(f) == 2 {
			a, errA := strconv.Atoi(f[0])
			b, errB := strconv.Atoi(f[1])
			if errA == nil && errB == nil {
				first, last = a, b
			}
		}
	}
	return max(2, (last-first+1)*9/20)
}

// mayConnect counts one more connection of the flow's sandbox. A connection that egressd closes first keeps its local port
// for a minute (TIME-WAIT, RFC 9293 section 3.6.1): a sandbox that only connects and leaves could use up the local
// ports towards one address. Loopback is not counted, since the kernel uses its ports again.
func (f *Flow) mayConnect(to netip.AddrPort) error {
	if !to.Addr().IsLoopback() && !f.gate.ports.Take(f.Holder(), f.Sandbox(), to, time.Since(f.gate.began)) {
		return errPorts
	}
	return nil
}

var tooManyPorts = policy.Decision{Class: policy.TooManyFlows, Rule: "limits", Layer: policy.Builtin, Reason: "the sandbox has begun as many connections to this address within a minute as local ports are left; a wider net.ipv4.ip_local_port_range raises the limit, and net.ipv4.tcp_tw_reuse=1 lifts it"}
