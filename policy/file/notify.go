package file

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Notify is the section "notify": who is told of questions, and where answers arrive.
type Notify struct {
	// To are those who are told. Default: nobody.
	To []NotifyTarget

	// Answers is the address and port of the listener for answers by link. Beyond loopback it needs CertFile and KeyFile. Default:
	// none, and messages have no links.
	Answers string

	// URL is how people reach that listener, such as through a reverse proxy, without a slash at its end. Default: its address.
	URL string

	// CertFile and KeyFile are PEM files of the listener's certificate and key. Relative paths are relative to the
	// folder of the configuration. Default: none, and the listener speaks plain HTTP.
	CertFile, KeyFile string

	// ForGood lets links approve for good, which adds a line to the policy file. Default: false; a command does that.
	ForGood bool
}

// A NotifyTarget is one entry of "notify.to".
type NotifyTarget struct {
	// Name is unique among targets. The log shows it with each answer.
	Name string

	// Type is "slack", "mattermost" or "ntfy".
	Type string

	// URLFile is a file with the URL, which nobody else may read. A relative path is relative to the folder of the
	// configuration.
	URLFile string

	// HeadersFile and CAFile are as in [Sink].
	HeadersFile, CAFile string
}

// notify reads the section.
func (r *reader) notify(f *File) func(*yaml.Node) {
	n := &f.Notify
	return func(node *yaml.Node) {
		r.mapping(node, "notify", fields{
			"to":        r.notifyTargets(&n.To),
			"answers":   r.fitting("notify.answers", &n.Answers, checkAnswers),
			"url":       r.checked("notify.url", &n.URL, problemOfAnswersURL),
			"cert_file": r.path("notify.cert_file", &n.CertFile),
			"key_file":  r.path("notify.key_file", &n.KeyFile),
			"for_good":  r.yes("notify.for_good", &n.ForGood),
		})
		n.URL = strings.TrimSuffix(n.URL, "/")
		r.checkNotify(node, n)
	}
}

func (r *reader) notifyTargets(into *[]NotifyTarget) func(*yaml.Node) {
	return func(n *yaml.Node) {
		for i, item := range r.items(n, "notify.to") {
			at := fmt.Sprintf("notify.to[%d]", i)
			t := NotifyTarget{}
			before := len(r.problems)
			r.mapping(item, at, fields{
				"name":         r.checked(at+".name", &t.Name, problemOfSinkName),
				"type":         word(r, at+".type", &t.Type, "slack", "mattermost", "ntfy"),
				"url_file":     r.path(at+".url_file", &t.URLFile),
				"headers_file": r.path(at+".headers_file", &t.HeadersFile),
				"ca_file":      r.path(at+".ca_file", &t.CAFile),
			})
			switch {
			case len(r.problems) > before:
			case t.Name == "" || t.Type == "" || t.URLFile == "":
				r.fail(item, "%s needs a name, a type and a url_file; write {name: team, type: slack, url_file: slack.url}", at)
			case slices.ContainsFunc(*into, func(b NotifyTarget) bool { return b.Name == t.Name }):
				r.fail(item, "notify.to has %q already; give this one another name", t.Name)
			}
			*into = append(*into, t)
		}
	}
}

// checkAnswers returns what is wrong with the listener for answers, or nil. Sandboxes are kept away from one address and port.
func checkAnswers(text string) error {
	at, err := netip.ParseAddrPort(text)
	if err != nil || at.Addr().Zone() != "" || at.Addr().Is4In6() || at.Addr().IsUnspecified() || at.Port() == 0 {
		return fmt.Errorf("%q is not one address and a port; write 127.0.0.1:3190, with a reverse proxy in front of it, or an address of this host", printable(text))
	}
	return nil
}

func problemOfAnswersURL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.ContainsAny(text, " <>|\"'`()[]\\") {
		return "is not a URL; write https://answers.example.com or the like, without a user or a query"
	}
	return ""
}

// checkNotify judges what the keys come to together.
func (r *reader) checkNotify(n *yaml.Node, of *Notify) {
	at, err := netip.ParseAddrPort(of.Answers)
	switch {
	case of.Answers == "" && (of.URL != "" || of.CertFile != "" || of.KeyFile != ""):
		r.fail(n, "notify has no answers, which url, cert_file and key_file are about; add \"answers: 127.0.0.1:3190\"")
	case (of.CertFile == "") != (of.KeyFile == ""):
		r.fail(n, "notify needs both cert_file and key_file; add the other, or leave both out")
	case err == nil && !at.Addr().IsLoopback() && of.CertFile == "":
		r.fail(n, "notify.answers %s can be reached from other machines, and whoever reads a link may answer; add cert_file and key_file, or write an address in 127.0.0.0/8 and put a reverse proxy with TLS in front of it", at)
	case of.Answers != "" && len(of.To) == 0:
		r.fail(n, "notify tells nobody, so nobody has a link; add to")
	}
}

// checkUndone refuses links where no command could take an answer back.
func (r *reader) checkUndone(f *File) {
	if len(f.Notify.To) > 0 && f.Listen.Admin == NoAdmin {
		r.failAt(r.places["listen.admin"], "listen.admin is none, so no command takes an answer to a question of notify back; leave it out, or take out notify")
	}
}
