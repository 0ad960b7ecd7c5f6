// Package export converts audit records to the formats of other programs: OCSF, ECS, CSV, OpenTelemetry
// and syslog. Its functions are pure; the package opens no file and no connection.
// Values that a record lacks are left out.
//
//	encode, ok := export.Named("ocsf")
//	text = encode(text[:0], record, line, export.Origin{Version: "1.4.0", Host: "build-7", Log: origin})
//
// A program in a sandbox may choose any text of a record. The output of all formats but OTLP is
// therefore printable ASCII with one event per line. A reader of the format gets each text back unchanged, or its beginning if the
// format limits the length.
//
// The record that opens a flow and the record that ends it are separate events. Both name the sandbox, the
// destination and the decision, so an encoder keeps no state.
package export

import (
	"maps"
	"os"
	"slices"

	"github.com/egressd/egressd/internal/version"
	"github.com/egressd/egressd/record"
)

// An Origin identifies the source of events.
type Origin struct {
	Version string // of egressd
	Host    string // name of the machine; may be empty
	Log     string // origin of the log; empty if it is unknown
}

// An Encoder appends the events of a record to b, each with a newline. The argument line is the record as the log stores it, without a
// newline, and travels in the event as the proof. An Encoder appends nothing if the format cannot express the record. It is safe for
// concurrent use.
type Encoder func(b []byte, r *record.Record, line []byte, from Origin) []byte

// encoders are the formats of sinks by name. The format "json" is the stored line and needs no encoder.
// CSV is for files, since it begins with a header.
var encoders = map[string]Encoder{
	"ocsf": ocsf,
	"ecs":  ecs,
}

// Named returns the encoder of a format and whether it exists.
func Named(name string) (Encoder, bool) {
	e, ok := encoders[name]
	return e, ok
}

// ToFile returns the encoder of a format for a file and the header of the file: "json", "csv", or one that [Named] knows.
func ToFile(name string) (encode Encoder, header string, ok bool) {
	switch name {
	case "csv":
		return CSV, CSVHeader(), true
	case "json":
		return JSON, "", true
	}
	encode, ok = Named(name)
	return encode, "", ok
}

// Formats returns the names that [Named] knows, sorted.
func Formats() []string { return slices.Sorted(maps.Keys(encoders)) }

// Here returns the origin of this process, without a log. Host is empty if the machine has no name.
func Here() Origin {
	host, err := os.Hostname()
	if err != nil {
		host = ""
	}
	return Origin{Version: version.This().Version, Host: host}
}
