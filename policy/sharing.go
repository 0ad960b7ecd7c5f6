package policy

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// CheckGrant returns an error if a command may not add p to an allow list: because an
// allow rule cannot open p, or because p covers hosts of several registrants. A person
// may still write the second kind into the file.
func CheckGrant(p Pattern) error {
	if class := p.NeedsUnsafe(); class != "" {
		return fmt.Errorf("%s is %s; no allow rule opens that", p, class)
	}
	wide := false
	switch p.kind {
	case none:
		return errors.New("an empty pattern holds nothing")
	case anyHost:
		wide = true
	case hostsBelow:
		suffix, _ := publicsuffix.PublicSuffix(p.name)
		wide = suffix == p.name
	case oneLabel:
		_, _, parent := p.aroundStar()
		suffix, _ := publicsuffix.PublicSuffix(parent)
		wide = suffix == parent
	case addresses:
		wide = p.prefix.Bits() < widePrefix(p) && !InSpecialSpace(p)
	}
	if wide {
		return fmt.Errorf("%s %s", p, sharing(p))
	}
	return nil
}

// Sharing says who else can answer for hosts of p, such as a hosting service with many
// customers. It returns "" if nobody is known.
func (p Pattern) Sharing() string { return sharing(p) }

// sharing says who else answers for the hosts of an allowed pattern, or "".
func sharing(p Pattern) string {
	switch p.kind {
	case anyHost:
		return "allows every public host; list the hosts that are needed"
	case addresses:
		if p.prefix.Bits() < widePrefix(p) && !InSpecialSpace(p) {
			return "allows a large part of the address space; write the prefixes that are needed"
		}
		return ""
	case hostsBelow:
		return sharingBelow(p.name)
	case oneLabel:
		_, _, parent := p.aroundStar()
		return sharingBelow(parent)
	case exactHost:
		if suffix, icann := publicsuffix.PublicSuffix(p.name); suffix == p.name && !icann && strings.Contains(p.name, ".") || isShared(p.name) {
			return "holds data of everyone who has an account there, so data can be sent to any of them; keep credentials for it out of the sandbox"
		}
	}
	return ""
}

func widePrefix(p Pattern) int {
	if p.prefix.Addr().Is4() {
		return 12
	}
	return 28
}

func sharingBelow(name string) string {
	suffix, icann := publicsuffix.PublicSuffix(name)
	switch {
	case suffix == name && (icann || !strings.Contains(name, ".")):
		return "allows every domain that anyone registers there; list the hosts that are needed"
	case suffix == name, slices.Contains(sharedDomains(), name):
		return "allows hosts that anyone can rent or make; list the hosts that are needed"
	}
	return ""
}

// isShared reports whether name is a single host that serves the uploads of
// its users, beside those that the public suffix list has in its private
// section.
func isShared(name string) bool {
	return slices.Contains([]string{
		"gist.github.com", "gist.githubusercontent.com", "raw.githubusercontent.com",
		"storage.googleapis.com", "firebasestorage.googleapis.com", "pastebin.com",
		"transfer.sh", "drive.google.com", "docs.google.com", "www.dropbox.com", "content.dropboxapi.com",
		"hooks.slack.com", "discord.com", "api.telegram.org", "script.google.com",
	}, name)
}

// sharedDomains are domains of one operator with hosts of its customers below
// them, some of which the public suffix list knows only further down.
func sharedDomains() []string {
	return []string{
		"amazonaws.com", "azure.com", "windows.net", "core.windows.net", "cloudflarestorage.com",
		"googleapis.com", "googleusercontent.com", "cloudapp.azure.com", "digitaloceanspaces.com",
		"ngrok.io", "ngrok.app", "trycloudflare.com", "myqcloud.com", "aliyuncs.com", "backblazeb2.com",
	}
}

// Rented reports whether hosts below a domain may belong to people who rent or make them, so that no rule should name all of
// them. It errs on the side of true.
func Rented(domain string) bool {
	if HandedOut(domain) || HandedOut("x."+domain) || sharingBelow(domain) != "" || isShared(domain) {
		return true
	}
	labels := strings.Split(domain, ".")
	for i, label := range labels {
		if slices.Contains([]string{"s3", "blob", "storage", "pages", "cdn", "buckets"}, label) || slices.Contains(sharedDomains(), strings.Join(labels[i:], ".")) {
			return true
		}
	}
	return false
}

// LooksLikeData reports whether a label of the name is so long and dense that it more likely carries data
// than names a host: 32 hexadecimal digits or more, or 48 characters or more.
func LooksLikeData(name string) bool {
	for label := range strings.SplitSeq(name, ".") {
		if len(label) >= 48 || len(label) >= 32 && strings.Trim(label, "0123456789abcdef") == "" {
			return true
		}
	}
	return false
}
