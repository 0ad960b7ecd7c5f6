package signals

import (
	"cmp"
	"net/netip"
	"strings"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// publishers are services where anybody can publish content for others to fetch. An entry includes all
// names below it.
var publishers = []string{
	"gist.github.com", "gist.githubusercontent.com", "pastebin.com", "paste.ee", "paste.rs", "dpaste.com", "dpaste.org", "hastebin.com",
	"ix.io", "sprunge.us", "termbin.com", "paste.debian.net", "rentry.co", "ghostbin.com", "controlc.com", "justpaste.it",
	"pastes.dev", "paste.sh", "privatebin.net", "bin.disroot.org", "pastebin.pl", "paste.mozilla.org", "paste.rtech.support", "bpa.st", "filebin.net", "file.coffee", "pixeldrain.com", "litterbox.catbox.moe",
	"0x0.st", "transfer.sh", "file.io", "gofile.io", "catbox.moe", "tmpfiles.org", "bashupload.com", "temp.sh", "anonfiles.com", "wetransfer.com", "oshi.at", "uguu.se",
	"webhook.site", "requestbin.com", "pipedream.net", "requestcatcher.com", "beeceptor.com", "hookbin.com", "interact.sh", "oast.fun", "oast.pro", "burpcollaborator.net",
	"ngrok.io", "ngrok.app", "ngrok-free.app", "trycloudflare.com", "serveo.net", "loca.lt",
	"api.telegram.org", "hooks.slack.com", "discord.com", "discordapp.com", "ntfy.sh",
}

// stores are cloud storage services where an attacker can quickly get an account.
var stores = []string{
	"s3.amazonaws.com", "storage.googleapis.com", "blob.core.windows.net", "r2.cloudflarestorage.com", "backblazeb2.com", "digitaloceanspaces.com",
	"content.dropboxapi.com", "upload.box.com", "www.googleapis.com", "graph.microsoft.com", "upload.pypi.org",
}

// overHTTPS are DNS-over-HTTPS servers, which bypass the local name server.
var overHTTPS = []string{
	"dns.google", "cloudflare-dns.com", "one.one.one.one", "dns.quad9.net", "doh.opendns.com", "dns.adguard-dns.com", "dns.nextdns.io",
	"doh.cleanbrowsing.org", "doh.mullvad.net", "dns.mullvad.net", "mozilla.cloudflare-dns.com",
}

// below returns the entry of names that is host or a parent of host, or "".
func below(names []string, host string) string {
	for _, name := range names {
		if rest, ok := strings.CutSuffix(host, name); ok && (rest == "" || strings.HasSuffix(rest, ".")) {
			return name
		}
	}
	return ""
}

// gists is the API path where GitHub publishes gists. The rest of the host serves other purposes.
const gists = "api.github.com/gists"

// traits describe a host.
type traits struct {
	destination string // its group
	lane        string // the host under which its lane is kept
	labels      string // those below its registrable domain; "" in a reverse zone
	publishes   bool   // it is one of publishers, or below one
}

func traitsOf(host string) *traits {
	publisher, domain := below(publishers, host), policy.Registrable(host)
	t := &traits{destination: cmp.Or(publisher, domain, host), lane: host, publishes: publisher != ""}
	if domain != "" && below(reverseZones, host) == "" {
		t.labels = strings.TrimSuffix(strings.TrimSuffix(host, domain), ".")
	}
	switch {
	case isStore(host): // numbered hosts of a store share a lane
		t.lane = family(host)
		t.destination = cmp.Or(publisher, t.lane)
	case isAddress(host):
		t.destination = host
	}
	return t
}

// traits returns what describes a host. It keeps the last ones, since a log has many records of each host.
func (f *Finder) traits(host string) *traits {
	t := f.hosts[host]
	if t == nil {
		if f.hosts == nil || len(f.hosts) >= maxSites {
			f.hosts = map[string]*traits{}
		}
		host = strings.Clone(host)
		t = traitsOf(host)
		f.hosts[host] = t
	}
	return t
}

// destination returns the group of the record's host.
func destination(r *record.Record, host *traits) string {
	if r.HTTP != nil && logs.Host(r) == "api.github.com" && (r.HTTP.Path == "/gists" || strings.HasPrefix(r.HTTP.Path, "/gists/")) {
		return gists
	}
	return host.destination
}

// isStore reports whether host is a store or below one. S3 is recognized in every region.
func isStore(host string) bool {
	if below(stores, host) != "" {
		return true
	}
	rest, ok := strings.CutSuffix(host, ".amazonaws.com")
	if !ok {
		return false
	}
	for label := range strings.SplitSeq(rest, ".") {
		if label == "s3" || strings.HasPrefix(label, "s3-") {
			return true
		}
	}
	return false
}

// family returns a store's host without the number at the end of its first label. Services spread one
// store over hosts such as productionresultssa0 to productionresultssa19.
func family(host string) string {
	first, rest, _ := strings.Cut(host, ".")
	if name := strings.TrimRight(first, "0123456789"); name != first && name != "" && !strings.HasPrefix(first, "s3") {
		return name + "#." + rest
	}
	return host
}

// reverseZones hold the names of addresses. An attacker can read data in such names only if the addresses
// are his own.
var reverseZones = []string{"in-addr.arpa", "ip6.arpa"}

// askedFor distinguishes the queries for one name. A program that connects causes an A query, an AAAA
// query and a connection.
func askedFor(r *record.Record) int {
	switch {
	case r.DNS == nil:
		return 0
	case r.DNS.Type == "A":
		return 1
	case r.DNS.Type == "AAAA":
		return 2
	}
	return 3
}

// isCarrier reports whether r is a DNS query of a type whose answers can carry arbitrary data. Programs
// rarely send such queries for many names.
func isCarrier(r *record.Record) bool {
	if r.DNS == nil {
		return false
	}
	switch r.DNS.Type {
	case "TXT", "NULL", "CNAME", "MX", "KEY", "PRIVATE", "TYPE65399":
		return true
	}
	return false
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// pushes reports whether the request pushes Git commits (gitprotocol-http).
func pushes(r *record.Record) bool {
	return r.HTTP != nil && strings.HasSuffix(r.HTTP.Path, "/git-receive-pack")
}

func writes(r *record.Record) bool {
	if r.HTTP == nil {
		return false
	}
	switch r.HTTP.Method {
	case "POST", "PUT", "PATCH":
		return true
	}
	return false
}
