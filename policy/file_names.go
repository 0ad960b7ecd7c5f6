package policy

import (
	"net/netip"
	"slices"

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

// nobodyAsks warns of a name server or a listener for captured connections to
// which no sandbox is known: both bring an address and nothing else.
func (w *warnings) nobodyAsks() {
	byAddress := func(s SandboxRules) bool {
		return len(s.Sources) > 0 && s.TokenFile == "" && s.Certificate == "" && s.Listen == "" && len(s.UIDs) == 0
	}
	f := w.file
	if len(f.Sandboxes) == 0 || slices.ContainsFunc(f.Sandboxes, byAddress) {
		return
	}
	if len(f.Listen.DNS) > 0 {
		w.say(f.places["listen.dns[0]"], "listen.dns answers nobody: a question is known by its address alone, and no sandbox has only source")
	}
	if len(f.Listen.Transparent) > 0 {
		w.say(f.places["listen.transparent[0]"], "listen.transparent lets nobody pass: a captured connection is known by its address alone, and no sandbox has only source")
	}
}
