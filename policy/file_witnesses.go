package policy

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// A Witness is one entry of "audit.witnesses": who cosigns the checkpoints of the log.
type Witness struct {
	// URL in front of "/add-checkpoint": its submission prefix.
	URL string

	// Key is the witness's public key: NAME+HASH+KEY.
	Key string

	// Every is how long egressd waits at least from one checkpoint to the next. Default: 10s.
	Every time.Duration

	// CAFile is a PEM file of the authorities that its certificate may come from, in place
	// of the system's. Only with https. Default: none.
	CAFile string
}

func (r *reader) witnesses(into *[]Witness) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "audit.witnesses") {
			at := fmt.Sprintf("audit.witnesses[%d]", i)
			var w Witness
			before := len(r.problems)
			r.mapping(item, at, fields{
				"url":     r.checked(at+".url", &w.URL, problemOfWitnessURL),
				"key":     r.checked(at+".key", &w.Key, problemOfWitnessKey),
				"every":   r.durationWithin(at+".every", &w.Every, time.Second, 24*time.Hour, "a duration from 1s to 24h, like 30s"),
				"ca_file": r.path(at+".ca_file", &w.CAFile),
			})
			if len(r.problems) == before {
				r.checkWitness(item, at, &w, *into)
			}
			*into = append(*into, w)
		}
	}
}

// checkWitness judges what the keys come to together.
func (r *reader) checkWitness(n *yaml.Node, at string, w *Witness, before []Witness) {
	switch {
	case w.URL == "":
		r.fail(n, "%s has no url; add \"url: https://witness.example.com\" or the like", at)
	case w.Key == "":
		r.fail(n, "%s has no key; add the public key that the witness's operator gives out", at)
	case w.CAFile != "" && !strings.HasPrefix(w.URL, "https:"):
		r.fail(n, "%s.ca_file is for https://; leave it out", at)
	case slices.ContainsFunc(before, func(b Witness) bool { return b.URL == w.URL }):
		r.fail(n, "%s stands above already; leave it out", at)
	}
}

func problemOfWitnessURL(text string) string {
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return "is not the URL of a witness; write https://witness.example.com or the like"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "holds more than a host and a path; write https://witness.example.com or the like"
	case strings.HasSuffix(strings.TrimSuffix(u.Path, "/"), "/add-checkpoint"):
		return "ends in /add-checkpoint, which egressd adds; leave it out"
	}
	return ""
}

var witnessKey = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[^+[:space:][:cntrl:]]+\+[0-9a-f]{8}\+[A-Za-z0-9+/]+=*$`)
})

// problemOfWitnessKey looks at the form alone. What it is the key of is seen where it is used.
func problemOfWitnessKey(text string) string {
	_, rest, _ := strings.Cut(text, "+")
	_, encoded, _ := strings.Cut(rest, "+")
	if _, err := base64.StdEncoding.DecodeString(encoded); err != nil || !witnessKey().MatchString(text) {
		return "is not the public key of a witness; write NAME+HASH+KEY, as its operator gives it out"
	}
	return ""
}
