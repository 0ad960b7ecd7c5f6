// Package credentials gives requests the secrets that a sandbox never holds. It has the shipped table of kinds,
// reads secrets from their sources, makes the placeholders that stand for them inside a sandbox, and puts the
// secret in the place of the placeholder in the head of a request.
//
// It knows no policy, and decides nothing about hosts: the caller says which rule decided a request. It connects to nothing but
// the servers of tokens that a source names. No error, record or printed value holds a secret.
//
//	set := credentials.NewSet(all)
//	answer := set.Apply(&credentials.Request{Sandbox: "ci", Host: "api.github.com", Rule: "gh", Target: target, Fields: fields})
//	if answer.Refused != "" { … }
package credentials

import (
	"strings"
	"time"
)

// A Spec is one credential as the policy file describes it. It holds no secret.
type Spec struct {
	Name string // unique in the file; in records, messages and the ids of rules
	Kind string // of the table; "" for a place that the file writes out

	// Places are where the secret goes: those of the kind, or the one of the file.
	Places []Place

	// Prefixes are how secrets of the kind begin. A placeholder begins with that of the real secret, else with the
	// first of them.
	Prefixes []string

	// Variables are exported into the sandbox.
	Variables []Variable

	// From is where the secret is read.
	From Source

	// ForeignPaths report whether a request at a path may have a credential of the sandbox's own. The request passes if
	// one of them says so. Everywhere else egressd refuses it.
	ForeignPaths []func(path string) bool

	// Bodies are parameters by which the service takes a credential from the body of a request as well.
	Bodies []string

	// Tenants are header fields by which a request chooses one of the accounts that the credential may use.
	Tenants []string

	// AWS is not nil for the kind [AWS], whose secret signs requests.
	AWS *AWSLimits

	// Docker is not nil for the kind [Docker].
	Docker *DockerSpec
}

// A Source says where a secret is read. Exactly one of File, Env, Command, OAuth and GitHubApp is set.
type Source struct {
	File    string   // a relative path is relative to the folder of the policy file
	Profile string   // of AWS, in File
	Field   string   // of the JSON object in File, such as "a.b"; "" for the whole file
	Env     string   // a variable of egressd's environment
	Command []string // a program, by name or absolute path, and its arguments; no shell reads it

	OAuth     *OAuth
	GitHubApp *GitHubApp

	// Refresh is how long the secret is used before it is read again. 0: as long as its source says.
	Refresh time.Duration
}

// A Variable is one environment variable of a sandbox. "{}" in its value is where the placeholder stands. "{secret}" and
// "{token}" are further texts that belong to it, for tools that ask for several.
type Variable struct{ Name, Value string }

// A Form is a set of ways to write a secret in a place.
type Form uint8

const (
	Bare          Form = 1 << iota // alone
	Bearer                         // "Bearer SECRET" (RFC 6750)
	Token                          // "token SECRET"
	BasicUser                      // as the user of Basic (RFC 7617)
	BasicPassword                  // as its password
	Signature                      // not at all: it signs the request (Signature Version 4 of AWS)
)

func (f Form) String() string {
	var parts []string
	for i, name := range []string{"bare", "Bearer", "token", "Basic user", "Basic password", "Signature Version 4"} {
		if f&(1<<i) != 0 {
			parts = append(parts, name)
		}
	}
	return strings.Join(parts, ", ")
}

// A Place is one part of a request that may hold a secret: a header field, or a parameter of the query.
type Place struct {
	Host   string // an exact name, or what a name ends with, from its dot on: ".googleapis.com"
	Under  string // the path begins with it; "" for any path
	Header string
	Query  string
	Forms  Form

	// Add is what egressd writes where the client sends no credential, with "{}" where the secret stands. What
	// stands behind "Basic " is encoded. "" adds nothing. Of several places with one, the first that fits counts.
	Add string
}

// At reports whether the place is on a host.
func (p *Place) At(host string) bool {
	if strings.HasPrefix(p.Host, ".") {
		return strings.HasSuffix(host, p.Host) && len(host) > len(p.Host)
	}
	return host == p.Host
}

// On reports whether a secret may go to a host.
func (s *Spec) On(host string) bool {
	for i := range s.Places {
		if s.Places[i].At(host) {
			return true
		}
	}
	return false
}

// Hosts are the hosts of the places, each once, in their order.
func (s *Spec) Hosts() (all []string) {
	seen := map[string]bool{}
	for i := range s.Places {
		if host := s.Places[i].Host; !seen[host] {
			seen[host] = true
			all = append(all, host)
		}
	}
	return all
}
