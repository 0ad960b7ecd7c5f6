package policy

import (
	"strings"

	"golang.org/x/net/idna"
)

// specialNames are the names that mean something only here, or only to those
// who run the machine; what is below one is special too. RFC 6761 and the
// registry that it opened, RFC 6762 appendix G for the suffixes that private
// networks took without asking, and what container run-times publish. Names of
// metadata services are in cloud/metadata.csv. Not among them: test and example,
// which resolve to nothing by themselves. It is never written.
var specialNames = map[string]AddressClass{
	"localhost":               AddrLoopback,
	"localhost.localdomain":   AddrLoopback,
	"localhost4":              AddrLoopback,
	"localhost4.localdomain4": AddrLoopback,
	"localhost6":              AddrLoopback,
	"localhost6.localdomain6": AddrLoopback,
	"ip6-localhost":           AddrLoopback,
	"ip6-loopback":            AddrLoopback,

	"local":       AddrLocalName, // multicast DNS; cluster.local too
	"internal":    AddrLocalName, // host.docker.internal, host.containers.internal
	"home.arpa":   AddrLocalName,
	"onion":       AddrLocalName,
	"alt":         AddrLocalName,
	"invalid":     AddrLocalName,
	"localdomain": AddrLocalName,
	"svc":         AddrLocalName, // Kubernetes, by its search path
	"lan":         AddrLocalName,
	"home":        AddrLocalName,
	"corp":        AddrLocalName,
	"intranet":    AddrLocalName,
	"private":     AddrLocalName,

	// These lead a client around the resolver that it was given.
	"ipv4only.arpa":           AddrLocalName, // RFC 7050
	"resolver.arpa":           AddrLocalName, // RFC 9462
	"use-application-dns.net": AddrLocalName, // Firefox asks it before using DoH
}

// classOfName returns the class of a canonical name, "" for one that the
// public DNS answers for. A name of one label is always local.
func classOfName(name string) AddressClass {
	if class := classBelow(name); class != "" {
		return class
	}
	if strings.IndexByte(name, '.') < 0 {
		return AddrLocalName
	}
	return ""
}

// classBelow returns the class of name and of every name below it.
func classBelow(name string) AddressClass {
	services, _ := metadataServices() // without it, no address is public
	for more := true; more; _, name, more = strings.Cut(name, ".") {
		if services.names[name] {
			return AddrMetadata
		}
		if class := specialNames[name]; class != "" {
			return class
		}
	}
	return ""
}

// isALabel reports whether label, in lower case, is the A-label that the
// U-label it stands for has. idna returns a name beside its error, so an error
// means no; and the way back is walked as well, so that no laxer decoder of a
// later version gives a label a second spelling.
func isALabel(label string) bool {
	unicode, err := idna.Lookup.ToUnicode(label)
	if err != nil {
		return false
	}
	back, err := idna.Lookup.ToASCII(unicode)
	return err == nil && back == label
}

// toALabels returns what to write for a name that is not ASCII, "" where
// there is nothing. It is for hints alone: nothing acts on its result.
func toALabels(name string) string {
	ascii, err := idna.Lookup.ToASCII(name)
	if err != nil {
		return ""
	}
	return ascii
}

// Unicode returns what a canonical name with A-labels reads in letters of all scripts,
// and "" where it has none. It is to be shown beside the name, never for it: many such
// letters look like others.
func Unicode(name string) string {
	unicode, err := idna.Lookup.ToUnicode(name)
	if err != nil || unicode == name {
		return ""
	}
	return unicode
}
