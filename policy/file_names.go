package policy

import (
	"net/netip"

	"go.yaml.in/yaml/v3"
)

// nameListener reads address:port, where names are asked for over UDP and TCP.
func (r *reader) nameListener(what string, into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		text, ok := r.text(n, what)
		if !ok {
			return
		}
		at, err := netip.ParseAddrPort(text)
		if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() {
			r.fail(n, "%s: %q is not an address and a port; write 127.0.0.1:53 or [::1]:53", what, printable(text))
			return
		}
		*into = text
		r.places[what] = placeOf(n)
	}
}

// nameListener warns of a name server that more than sandboxes can reach.
func (w *warnings) nameListener(what, text string) {
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		return
	}
	const advice = "write an address that only sandboxes can reach, or list them by source under sandboxes"
	switch {
	case at.Addr().IsUnspecified():
		w.say(w.file.places[what], "%s answers on every address of this host, to whoever can reach one of them; %s", what, advice)
	case ClassOf(at.Addr()) == "":
		w.say(w.file.places[what], "%s answers on a public address, to whoever can reach it; %s", what, advice)
	}
}
