package file

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Sink is one entry of "audit.sinks": a receiver of the log's records.
type Sink struct {
	// Name is unique among sinks. The file that stores the sink's progress has this name.
	Name string

	// Type is "otlp", "syslog", "file" or "unix".
	Type string

	// URL of an OTLP receiver for logs, as http://127.0.0.1:4318/v1/logs. Only
	// with the type "otlp".
	URL string

	// Address of a syslog server: "udp:HOST:PORT", "tcp:HOST:PORT", "tls:HOST:PORT" or
	// "unix:/PATH". Only with the type "syslog".
	Address string

	// Path of the file, or of the socket that is connected to. A relative path is
	// relative to the folder of the configuration. Only with "file" and "unix".
	Path string

	// Format is that of the events: "json", the default, for the records as they
	// are stored, or one of egressd log export.
	Format string

	// HeadersFile holds headers for the requests, each on a line "Name: value".
	// Only with the type "otlp". Default: none.
	HeadersFile string

	// CAFile is a PEM file of the authorities that the receiver's certificate may
	// come from, in place of the system's. Only with TLS. Default: none.
	CAFile string
}

// SinkFormats are the formats of sinks.
var SinkFormats = []string{"json", "ocsf", "ecs"}

func (r *reader) sinks(into *[]Sink) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "audit.sinks") {
			at := fmt.Sprintf("audit.sinks[%d]", i)
			s := Sink{Format: "json"}
			before := len(r.problems)
			r.mapping(item, at, fields{
				"name":         r.checked(at+".name", &s.Name, problemOfSinkName),
				"type":         word(r, at+".type", &s.Type, "otlp", "syslog", "file", "unix"),
				"url":          r.checked(at+".url", &s.URL, problemOfSinkURL),
				"address":      r.checked(at+".address", &s.Address, problemOfSinkAddress),
				"path":         r.path(at+".path", &s.Path),
				"format":       r.sinkFormat(at+".format", &s.Format),
				"headers_file": r.path(at+".headers_file", &s.HeadersFile),
				"ca_file":      r.path(at+".ca_file", &s.CAFile),
			})
			if len(r.problems) == before {
				r.checkSink(item, at, &s, *into)
			}
			*into = append(*into, s)
		}
	}
}

func (r *reader) sinkFormat(what string, into *string) func(*yaml.Node) {
	read := word(r, what, into, SinkFormats...)
	return func(n *yaml.Node) {
		if instead := RemovedFormat(n.Value); instead != "" {
			r.fail(n, "%s cannot be %q: %s", what, n.Value, instead)
			return
		}
		read(n)
	}
}

// problemOfSinkName judges a name that can be that of a file.
func problemOfSinkName(text string) string {
	return unless(plainName(text) && !strings.HasPrefix(text, "."), text, plainNames)
}

// checkSink judges what the keys come to together.
func (r *reader) checkSink(n *yaml.Node, at string, s *Sink, before []Sink) {
	wants := map[string]string{"otlp": "url", "syslog": "address", "file": "path", "unix": "path"}
	secure := strings.HasPrefix(s.URL, "https:") || strings.HasPrefix(s.Address, "tls:")
	given := map[string]bool{"url": s.URL != "", "address": s.Address != "", "path": s.Path != ""}
	switch {
	case s.Name == "":
		r.fail(n, "%s has no name; add \"name: siem\" or the like", at)
	case s.Type == "":
		r.fail(n, "%s has no type; add \"type: otlp\", syslog, file or unix", at)
	case !given[wants[s.Type]]:
		r.fail(n, "%s has no %s, which a sink of type %s needs; add one", at, wants[s.Type], s.Type)
	case slices.ContainsFunc([]string{"url", "address", "path"}, func(key string) bool { return given[key] && key != wants[s.Type] }):
		r.fail(n, "%s has more than a %s, which is all that a sink of type %s needs; leave out the others", at, wants[s.Type], s.Type)
	case s.HeadersFile != "" && s.Type != "otlp":
		r.fail(n, "%s.headers_file is for sinks of type otlp; leave it out", at)
	case s.CAFile != "" && !secure:
		r.fail(n, "%s.ca_file is for https:// and tls:; leave it out", at)
	case slices.ContainsFunc(before, func(b Sink) bool { return b.Name == s.Name }):
		r.fail(n, "a sink %q stands above already; give this one another name", s.Name)
	}
}

func problemOfSinkURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "is not the URL of a receiver; write http://127.0.0.1:4318/v1/logs or the like"
	case u.User != nil:
		return "holds a user or a password; write them into headers_file"
	case u.Fragment != "":
		return "has a fragment; leave out # and what follows"
	}
	return ""
}

func problemOfSinkAddress(text string) string {
	const form = "write udp:HOST:PORT, tcp:HOST:PORT, tls:HOST:PORT or unix:/PATH"
	network, at, _ := strings.Cut(text, ":")
	switch network {
	case "unix":
		if !strings.HasPrefix(at, "/") && !strings.HasPrefix(at, "${") {
			return "is not an address; " + form
		}
		return ""
	case "udp", "tcp", "tls":
	default:
		return "is not an address; " + form
	}
	host, port, err := net.SplitHostPort(at)
	number, err2 := strconv.ParseUint(port, 10, 16)
	if _, err3 := netip.ParseAddr(host); err != nil || err2 != nil || number == 0 || host == "" || err3 != nil && strings.ContainsAny(host, " /:@") {
		return "is not an address; " + form
	}
	return ""
}
