// Package export writes audit records in the forms that other programs read:
// OCSF, ECS, Zeek, Suricata's EVE, CEF, OpenTelemetry and syslog. Its functions
// are pure: a record goes in, text comes out. It opens no file and no
// connection, and leaves out what a record does not say rather than guess.
//
//	encode, ok := export.Named("ocsf")
//	text = encode(text[:0], record, export.Origin{Version: "1.4.0", Host: "build-7"})
//
// Every text in a record may have been chosen by a program in a sandbox. What is
// written is printable ASCII and one event a line, whatever the record holds;
// whoever reads it by the rules of its form gets each text back as it was, or,
// where the form has a limit, its beginning.
//
// A record is exported as it stands: the one that opens a flow and the one that
// ends it are two events. Both hold who, where and why, so that nothing has to be
// remembered in between.
package export

import (
	"slices"

	"github.com/egressd/egressd/egress"
)

// Origin is what events say of where they come from.
type Origin struct {
	Version string // of egressd
	Host    string // name of the machine; may be empty
}

// An Encoder appends the events of a record to b, each with a newline at its end.
// It appends nothing where its form has no word for what the record says. It is
// safe for concurrent use.
type Encoder func(b []byte, r *egress.Record, from Origin) []byte

// encoders are the forms by name. "json" is not among them: that is the line as
// it is stored.
var encoders = map[string]Encoder{
	"ocsf": ocsf,
	"ecs":  ecs,
	"zeek": zeek,
	"eve":  eve,
	"cef":  cef,
}

// Named returns the encoder of a form, and whether there is one.
func Named(name string) (Encoder, bool) {
	e, ok := encoders[name]
	return e, ok
}

// Formats lists the names that [Named] knows, in the order of the alphabet.
func Formats() []string {
	var names []string
	for name := range encoders {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
