package policy

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Warnings returns what is allowed in a file and yet seldom meant, one sentence
// each with its place, to be said at every start and by "policy check". others are
// the further files of the same policy.
func (f *File) Warnings(others ...*File) (said []string) {
	for _, p := range f.Doubts(others...) {
		said = append(said, p.String())
	}
	return said
}

// Doubts are the warnings with their places apart.
func (f *File) Doubts(others ...*File) []Problem {
	w := warnings{file: f}
	if f.Default == Allow {
		w.say(f.places["default"], "default is allow: every public destination that no line denies can be reached")
	} else if f.kind == userFile && len(f.Ask) == 0 && !slices.ContainsFunc(append(others, f), (*File).Opens) {
		w.say(place{1, 1}, "0 rules allow anything, so everything is denied; add a host under allow")
	}
	for _, rule := range f.UnsafeAllow {
		if rule.at == (place{}) { // added to the file by whoever asked for it
			continue
		}
		w.say(rule.at, "%s opens %s, which no sandbox should need", rule.ID, rule.Pattern)
	}
	opening := f.Allow
	for _, other := range others {
		opening = slices.Concat(opening, other.Allow)
	}
	for i := range f.Allow {
		w.allow(&f.Allow[i])
		w.leads(&f.Allow[i], opening)
	}
	for i, text := range f.Listen.DNS {
		w.nameListener(fmt.Sprintf("listen.dns[%d]", i), text)
	}
	w.nobodyAsks()
	return w.said
}

// Opens reports whether anything in the file may allow something.
func (f *File) Opens() bool {
	return len(f.Allow)+len(f.UnsafeAllow)+len(f.Presets) > 0 || f.names(false)
}

type warnings struct {
	file *File
	said []Problem
}

func (w *warnings) say(at place, format string, arguments ...any) {
	w.said = append(w.said, Problem{w.file.name, max(at.line, 1), max(at.column, 1), fmt.Sprintf(format, arguments...)})
}

// allow warns of a rule that lets data out to more people than it seems.
func (w *warnings) allow(r *Rule) {
	if why := sharing(r.Pattern); why != "" {
		w.say(r.at, "%s: %s %s", r.ID, r.Pattern, why)
	}
	if r.conditional() && r.Inject == nil && w.file.Default == Allow {
		w.say(r.at, "%s changes nothing: the requests that it leaves out are allowed by default; write what is to be refused under deny", r.ID)
	}
}

// leads warns of a rule for many names where a rule opens a private address at one of its
// ports: whoever answers for one of the names can have it lead there.
func (w *warnings) leads(r *Rule, opening []Rule) {
	if r.Pattern.kind != anyHost && r.Pattern.kind != hostsBelow || InSpecialSpace(r.Pattern) {
		return
	}
	for i := range opening {
		e := &opening[i]
		if e.Pattern.kind == addresses && InSpecialSpace(e.Pattern) && portsMeet(r.Pattern, e.Pattern) {
			w.say(r.at, "%s: a name that %s holds may lead to %s; what %s allows there can then be asked for under that name, and nothing else; list the names that are needed", r.ID, r.Pattern, e.Pattern, e.ID)
			return
		}
	}
}

func portsMeet(a, b Pattern) bool {
	for _, s := range a.ports.ranges() {
		for _, t := range b.ports.ranges() {
			if max(s.first, t.first) <= min(s.last, t.last) {
				return true
			}
		}
	}
	return false
}

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
