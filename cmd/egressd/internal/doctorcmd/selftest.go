package doctorcmd

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/daemon/confine"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/exits"
	"github.com/spf13/cobra"
)

// NewSelftest returns egressd selftest.
func NewSelftest() *cobra.Command {
	var asJSON, redirect bool
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Try to get out of a sandbox of this machine",
		Long: `Selftest makes the sandbox that egressd run makes, and tries the ways out of it
that are known, from inside and as restricted as a program would be; and it looks
that connections and datagrams to anywhere arrive at egressd. Nothing leaves the
machine. Run does the same before each program but for the packets, and refuses
to start it where one of them succeeds.

It exits with 0 where nothing got out, with 1 where something did, and with 2
where no sandbox could be made.`,
		Example: `  egressd selftest
  egressd selftest --json`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tried, _, err := selftest(redirect)
			if err != nil {
				return asUsage(err)
			}
			return sayAttempts(cmd.OutOrStdout(), tried, asJSON)
		},
	}
	cli.JsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&redirect, "redirect", false, "capture connections by NAT also where the kernel has tproxy")
	return cmd
}

// asUsage gives an error the exit code by which it is told from an answer.
func asUsage(err error) error {
	var f *hint.Error
	if errors.As(err, &f) {
		return &hint.Error{Code: cli.ExitUsage, Err: err, Hint: f.Hint}
	}
	return &hint.Error{Code: cli.ExitUsage, Err: err}
}

// selftest makes a sandbox without a policy, behind which nobody dials, and says
// whether NAT captures there.
func selftest(redirect bool) (tried []sandbox.Attempt, redirected bool, err error) {
	own4, own6 := egress.DefaultSynthetic().Own()
	jail, err := sandbox.NewJail(sandbox.JailOptions{IPv4: own4, IPv6: own6, Redirect: redirect})
	if err != nil {
		return nil, false, exits.NoSandbox(err)
	}
	defer jail.Close()
	if err := confine.Memory(); err != nil {
		return nil, false, err
	}
	sockets, err := jail.Sockets()
	if err != nil {
		return nil, false, exits.NoSandbox(err)
	}
	defer closeSockets(sockets)
	p := sandbox.Program{Argv: []string{"/proc/self/exe"}, Doors: hostpaths.HostSockets(nil), Fixed: hostpaths.OwnProgram(), Packets: true}
	tried, err = jail.Prepare(p)
	if err != nil {
		return nil, false, exits.NoSandbox(err)
	}
	return append(tried, arrivals(sockets)...), sockets.Redirected, nil
}

func closeSockets(s *sandbox.Sockets) {
	for _, l := range append(s.TCP, s.DNSStreams...) {
		l.Close()
	}
	for _, c := range s.DNS {
		c.Close()
	}
	for _, d := range s.UDP {
		d.Close()
	}
}

// arriveWithin is how long what was sent in the same machine may take.
const arriveWithin = 2 * time.Second

// arrivals looks that what was sent in the sandbox came to its sockets.
func arrivals(s *sandbox.Sockets) (all []sandbox.Attempt) {
	for _, l := range s.TCP {
		all = append(all, arrived("a connection", l, func() (netip.AddrPort, error) {
			c, err := l.Accept()
			if err != nil {
				return netip.AddrPort{}, err
			}
			defer c.Close()
			return netip.ParseAddrPort(c.LocalAddr().String())
		}, !s.Redirected))
	}
	for _, d := range s.UDP {
		all = append(all, arrived("a datagram", d, func() (netip.AddrPort, error) {
			g, err := d.Next()
			return g.To, err
		}, true))
	}
	return all
}

// arrived waits for one. Its address is known there unless NAT has changed it.
func arrived(what string, from io.Closer, next func() (netip.AddrPort, error), known bool) sandbox.Attempt {
	late := time.AfterFunc(arriveWithin, func() { from.Close() })
	defer late.Stop()
	to, err := next()
	switch {
	case errors.Is(err, net.ErrClosed):
		return sandbox.Attempt{Name: what, Escaped: "it did not arrive at egressd"}
	case err != nil:
		return sandbox.Attempt{Name: what, Escaped: err.Error()}
	}
	a := sandbox.Attempt{Name: what + " over " + familyOf(to.Addr())}
	if known && !sandbox.IsAttempted(to) {
		a.Escaped = "one to " + to.String() + " arrived instead"
	}
	return a
}

func familyOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// sayAttempts prints what was tried, and returns 1 as a status where one got out.
func sayAttempts(w io.Writer, tried []sandbox.Attempt, asJSON bool) error {
	var out int
	for _, a := range tried {
		if a.Escaped != "" {
			out++
		}
		if asJSON {
			if err := cli.PrintJSON(w, a); err != nil {
				return err
			}
			continue
		}
		if a.Escaped != "" {
			fmt.Fprintf(w, "✗ %s: %s\n", a.Name, printable.Text(a.Escaped))
			continue
		}
		fmt.Fprintf(w, "✓ %s\n", a.Name)
	}
	if !asJSON {
		fmt.Fprintf(w, "self-test %d/%d\n", len(tried)-out, len(tried))
	}
	if out > 0 {
		return cli.Status(cli.ExitFailed)
	}
	return nil
}
