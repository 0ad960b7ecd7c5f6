package peers

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// writeCilium: names and ranges with their ports, and denied ranges, which win. Cilium decides by the addresses that a
// name was seen to have.
func writeCilium(w *writing) (string, error) {
	lines := w.lines(form{ranges: true, resolves: true, decides: denyFirst, says: func(e entry) bool {
		return e.allow || isPrefix(e.hosts) && e.ports == nil
	}})
	w.widerf("whatever is at an address that an allowed name has is let pass at the same ports")
	w.saysOpen(lines)
	var allow []map[string]any
	var names []map[string]string
	var denied []string
	for _, e := range lines {
		if !e.allow {
			denied = append(denied, e.hosts.prefix.String())
			continue
		}
		rule := map[string]any{}
		switch e.hosts.kind {
		case everyHost:
			rule["toEntities"] = []string{"world"}
			names = append(names, map[string]string{"matchPattern": "*"})
		case somePrefix:
			rule["toCIDR"] = []string{e.hosts.prefix.String()}
		case belowName, labelName:
			name := map[string]string{"matchPattern": e.hosts.name}
			if e.hosts.kind == belowName {
				name["matchPattern"] = "**." + e.hosts.name
			}
			rule["toFQDNs"], names = []any{name}, append(names, name)
		default:
			name := map[string]string{"matchName": e.hosts.name}
			rule["toFQDNs"], names = []any{name}, append(names, name)
		}
		rule["toPorts"] = ciliumToPorts(e.ports)
		allow = append(allow, rule)
	}
	spec := map[string]any{"endpointSelector": map[string]any{}, "egress": append([]map[string]any{ciliumDNS(names)}, allow...)}
	if len(denied) > 0 {
		spec["egressDeny"] = []any{map[string]any{"toCIDR": denied}}
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": map[string]any{"name": "egressd"}, "spec": spec,
	})
	return string(text), err
}

func ciliumToPorts(ports []span) []any {
	if ports == nil {
		ports = []span{allPorts}
	}
	list := make([]any, len(ports))
	for i, s := range ports {
		one := map[string]any{"port": strconv.Itoa(int(s.first)), "protocol": "TCP"}
		if s.wide() {
			one["endPort"] = int(s.last)
		}
		list[i] = one
	}
	return []any{map[string]any{"ports": list}}
}

// ciliumDNS lets pods ask the cluster's name server for the names alone, so that Cilium learns their addresses.
func ciliumDNS(names []map[string]string) map[string]any {
	return map[string]any{
		"toEndpoints": []any{map[string]any{"matchLabels": map[string]string{"k8s:io.kubernetes.pod.namespace": "kube-system", "k8s:k8s-app": "kube-dns"}}},
		"toPorts":     []any{map[string]any{"ports": []any{map[string]any{"port": "53", "protocol": "ANY"}}, "rules": map[string]any{"dns": append([]map[string]string{}, names...)}}},
	}
}

// regoSpan is what is decided for the hosts of one row: by ranges of ports.
type regoSpan struct {
	First uint16    `json:"first"`
	Last  uint16    `json:"last"`
	Allow bool      `json:"allow"`
	Ways  []regoWay `json:"ways"`
}

type regoWay struct {
	Allow   bool     `json:"allow"`
	Methods []string `json:"methods"`
	Paths   []string `json:"paths"` // regular expressions
}

// writeOPAEnvoy writes the table as it is. Envoy has resolved no name when it asks.
func writeOPAEnvoy(w *writing) (string, error) {
	rows := map[string][]regoSpan{}
	type addressRange struct {
		CIDR  string     `json:"cidr"`
		Spans []regoSpan `json:"spans"`
	}
	ranges := []addressRange{}
	ordered := slices.SortedStableFunc(slices.Values(w.table.rows), func(a, b *row) int { return a.hosts.specific(b.hosts) })
	for _, r := range ordered {
		spans := regoSpans(w.table.spans, r.does)
		if isPrefix(r.hosts) {
			ranges = append(ranges, addressRange{r.hosts.prefix.String(), spans})
		} else {
			rows[r.hosts.String()] = spans
		}
		if r.hosts == everything && slices.ContainsFunc(r.does, action.allows) {
			w.widerf("names of the local network, such as host.internal, are let pass")
		}
	}
	w.saysResolved()
	names, err := json.MarshalIndent(rows, "", "\t")
	if err != nil {
		return "", err
	}
	addresses, err := json.MarshalIndent(ranges, "", "\t")
	return fmt.Sprintf(regoText, canonicalPath, names, addresses), err
}

// regoSpans joins ranges of ports for which the same is decided.
func regoSpans(spans []span, does []action) (all []regoSpan) {
	for i, s := range spans {
		if i > 0 && does[i].same(does[i-1]) {
			all[len(all)-1].Last = s.last
			continue
		}
		one := regoSpan{s.first, s.last, does[i].allow, []regoWay{}}
		for _, way := range does[i].ways {
			paths := []string{}
			for _, p := range way.paths {
				paths = append(paths, pathRegex(p))
			}
			one.Ways = append(one.Ways, regoWay{way.allow, append([]string{}, way.methods...), paths})
		}
		all = append(all, one)
	}
	return all
}

// canonicalPath matches paths that servers read in one way: no empty segment but the last, no dot segments, no escapes. It is
// narrower than egressd's own test.
const canonicalPath = `^(/(\.{0,2}[A-Za-z0-9_~!$&'()*+,=:@-][A-Za-z0-9_~!$&'()*+,=:@.-]*|\.{3,}[A-Za-z0-9_~!$&'()*+,=:@.-]*))*/?$`

// pathRegex is a pattern of paths as a regular expression for paths that are canonical.
func pathRegex(pattern string) string {
	var b strings.Builder
	for segment := range strings.SplitSeq(pattern[1:], "/") {
		if segment == "**" {
			b.WriteString("(/[^/]*)*")
			continue
		}
		b.WriteString("/" + strings.ReplaceAll(regexp.QuoteMeta(segment), `\*`, "[^/]*"))
	}
	return "^" + b.String() + "$"
}

// regoText takes the expression of canonical paths, the rows of names, and those of addresses.
const regoText = `package envoy.authz

# From rules of egressd, by egressd policy export. The most specific row decides.

import rego.v1

default allow := false

allow if {
	some s in row
	s.first <= port
	port <= s.last
	verdicts := array.concat([w.allow | some w in s.ways; holds(w)], [s.allow])
	verdicts[0]
}

request := input.attributes.request.http

parts := regex.find_all_string_submatch_n(` + "`^(?:\\[([0-9a-f:.]+)\\]|([^:\\[\\]]+))(?::([0-9]{1,5}))?$`" + `, lower(request.host), 1)[0]

host := concat("", [parts[1], trim_suffix(parts[2], ".")])

port := to_number(parts[3]) if parts[3] != ""

port := 443 if {
	parts[3] == ""
	request.scheme == "https"
}

port := 80 if {
	parts[3] == ""
	request.scheme == "http"
}

is_name if regex.match(` + "`^([a-z0-9_]([a-z0-9_-]*[a-z0-9_])?\\.)*[a-z]([a-z0-9-]*[a-z0-9])?$`" + `, host)

is_address if regex.match(` + "`^([0-9]+(\\.[0-9]+){3}|[0-9a-f:.]*:[0-9a-f:.]*)$`" + `, host)

row := rows_of_name[0] if is_name

row := rows_of_address[0] if is_address

labels := split(host, ".")

below := [concat(".", array.concat(["*"], array.slice(labels, i, count(labels)))) | some i in numbers.range(1, count(labels)); i < count(labels)]

rows_of_name := [rows[p] | some p in array.concat(array.concat([host], below), ["*"])]

rows_of_address := array.concat([r.spans | some r in ranges; net.cidr_contains(r.cidr, host)], [rows["*"]])

path := split(request.path, "?")[0]

canonical if regex.match(` + "`%[1]s`" + `, path)

methods(w) := [request.method] if w.allow

methods(w) := [request.method, upper(request.method)] if not w.allow

holds(w) if {
	of_method(w)
	of_path(w)
}

of_method(w) if count(w.methods) == 0

of_method(w) if {
	some m in methods(w)
	m in w.methods
}

of_path(w) if count(w.paths) == 0

of_path(w) if {
	canonical
	some p in w.paths
	regex.match(p, path)
}

of_path(w) if {
	count(w.paths) > 0
	not w.allow
	not canonical
}

rows := %[2]s

ranges := %[3]s
`
