package signals

import (
	"net/netip"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
)

// Places where whoever has an account, or nobody, can leave something that others
// fetch: what is published there is out. Of each, all that is below it.
var publishers = []string{
	"gist.github.com", "gist.githubusercontent.com", "pastebin.com", "paste.ee", "paste.rs", "dpaste.com", "dpaste.org", "hastebin.com",
	"ix.io", "sprunge.us", "termbin.com", "paste.debian.net", "rentry.co", "ghostbin.com", "controlc.com", "justpaste.it",
	"pastes.dev", "paste.sh", "privatebin.net", "bin.disroot.org", "pastebin.pl", "paste.mozilla.org", "paste.rtech.support", "bpa.st", "filebin.net", "file.coffee", "pixeldrain.com", "litterbox.catbox.moe",
	"0x0.st", "transfer.sh", "file.io", "gofile.io", "catbox.moe", "tmpfiles.org", "bashupload.com", "temp.sh", "anonfiles.com", "wetransfer.com", "oshi.at", "uguu.se",
	"webhook.site", "requestbin.com", "pipedream.net", "requestcatcher.com", "beeceptor.com", "hookbin.com", "interact.sh", "oast.fun", "oast.pro", "burpcollaborator.net",
	"ngrok.io", "ngrok.app", "ngrok-free.app", "trycloudflare.com", "serveo.net", "loca.lt",
	"api.telegram.org", "hooks.slack.com", "discord.com", "discordapp.com", "ntfy.sh",
}

// Stores where many keep their own and one more has an account quickly.
var stores = []string{
	"s3.amazonaws.com", "storage.googleapis.com", "blob.core.windows.net", "r2.cloudflarestorage.com", "backblazeb2.com", "digitaloceanspaces.com",
	"content.dropboxapi.com", "upload.box.com", "www.googleapis.com", "graph.microsoft.com", "upload.pypi.org",
}

// Name servers that answer over HTTPS: a way around the one that is watched.
var overHTTPS = []string{
	"dns.google", "cloudflare-dns.com", "one.one.one.one", "dns.quad9.net", "doh.opendns.com", "dns.adguard-dns.com", "dns.nextdns.io",
	"doh.cleanbrowsing.org", "doh.mullvad.net", "dns.mullvad.net", "mozilla.cloudflare-dns.com",
}

// below returns which of the names host is, or is below; "" for none.
func below(names []string, host string) string {
	for _, name := range names {
		if rest, ok := strings.CutSuffix(host, name); ok && (rest == "" || strings.HasSuffix(rest, ".")) {
			return name
		}
	}
	return ""
}

// gists is where GitHub's interface takes what is published, on a host that is used
// for much else.
const gists = "api.github.com/gists"

// destination is what records are grouped by.
func destination(r *egress.Record) string {
	host := logs.Host(r)
	switch {
	case r.HTTP != nil && host == "api.github.com" && (r.HTTP.Path == "/gists" || strings.HasPrefix(r.HTTP.Path, "/gists/")):
		return gists
	case below(publishers, host) != "":
		return below(publishers, host)
	case isStore(host):
		return family(host)
	case isAddress(host):
		return host
	}
	if domain := policy.Registrable(host); domain != "" {
		return domain
	}
	return host
}

// isStore reports whether host is, or is below, one of the stores, S3 in each of its regions included.
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

// family is a host of a store without the number that its first label ends in: what is spread over
// productionresultssa0 to productionresultssa19 is one store.
func family(host string) string {
	first, rest, _ := strings.Cut(host, ".")
	if name := strings.TrimRight(first, "0123456789"); name != first && name != "" && !strings.HasPrefix(first, "s3") {
		return name + "#." + rest
	}
	return host
}

// reverseZones hold the names of addresses. Who tells something by their labels would have to own
// the addresses.
var reverseZones = []string{"in-addr.arpa", "ip6.arpa"}

// askedFor tells apart what is asked of one name at a time: a resolver asks for both kinds of
// address, and a program connects then.
func askedFor(r *egress.Record) int {
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

// isCarrier reports whether r is a question whose answer holds what the other side
// likes, which programs seldom ask of many names.
func isCarrier(r *egress.Record) bool {
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

// pushes reports whether a request sends commits (gitprotocol-http).
func pushes(r *egress.Record) bool {
	return r.HTTP != nil && strings.HasSuffix(r.HTTP.Path, "/git-receive-pack")
}

func writes(r *egress.Record) bool {
	if r.HTTP == nil {
		return false
	}
	switch r.HTTP.Method {
	case "POST", "PUT", "PATCH":
		return true
	}
	return false
}
