package run

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/sandbox/environ"
)

// withoutProxies returns the environment without proxy variables, since the program has no way to such a proxy.
// A proxy at a port of --host-port stays.
func (r *runner) withoutProxies(env []string) []string {
	env, r.proxies = environ.WithoutProxies(env, r.isGiven)
	return env
}

// isGiven reports whether a proxy is at a port of --host-port.
func (r *runner) isGiven(proxy string) bool {
	if !strings.Contains(proxy, "://") {
		proxy = "http://" + proxy
	}
	at, err := url.Parse(proxy)
	if err != nil {
		return false
	}
	port, err := strconv.ParseUint(at.Port(), 10, 16)
	return err == nil && environ.ReachesOnlyHere(at.Hostname()) && slices.Contains(r.given, uint16(port))
}

// sayProxies says which proxy variables the program does not get.
func (r *runner) sayProxies() {
	if len(r.proxies) == 0 {
		return
	}
	names, others := r.proxies, ""
	if len(names) > shownProxies {
		others, names = fmt.Sprintf(" and %d more", len(names)-shownProxies), names[:shownProxies]
	}
	fmt.Fprintf(r.talk, "egressd: the program needs no proxy and does not get %s%s\n", printable.Text(strings.Join(names, ", ")), others)
	if slices.ContainsFunc(r.proxies, isElsewhere) {
		hint.Sayf(r.talk, "egressd connects directly, not through that proxy; a network whose only way out is a proxy does not work with it")
	}
}

const shownProxies = 3

// isElsewhere reports whether a variable names a proxy on another machine.
func isElsewhere(name string) bool {
	at, err := url.Parse(os.Getenv(name))
	return err == nil && at.Hostname() != "" && !environ.ReachesOnlyHere(at.Hostname())
}
