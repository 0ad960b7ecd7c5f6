package policy

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// A Destination is where a request wants to go, in canonical form. It is made
// by [ParseDestination] alone; a Destination made otherwise is not trusted by
// anything here.
type Destination struct {
	// Host is a lower-case name of A-labels without a trailing dot, or the
	// canonical text of Addr.
	Host string
	// Addr is valid where the host was given as an address; it is unmapped
	// and has no zone.
	Addr netip.Addr
	Port uint16

	// Asked is the address that the client asked for, where Host is a name that only its first bytes, or the Host
	// field of its request, claim. Nothing is decided by it, and nothing dialled: it is for the record.
	Asked netip.Addr

	// Addrs are the addresses Host resolved to, Aliases the CNAMEs on the
	// way. Both are empty until the gate has resolved the name.
	Addrs   []netip.Addr
	Aliases []string
	// Local says that Addrs come from the hosts file of egressd's machine. Nothing is decided by it: it is for the record.
	Local bool
}

// String returns host:port, with an IPv6 address in brackets.
func (d Destination) String() string {
	if d.Addr.Is6() {
		return "[" + d.Host + "]:" + strconv.Itoa(int(d.Port))
	}
	return d.Host + ":" + strconv.Itoa(int(d.Port))
}

const (
	maxNameLength  = 253 // RFC 1035 §2.3.4, without the root's empty label
	maxLabelLength = 63
	maxErrorText   = 256
)

// A DestinationError says why text is not a destination, a host or a name.
// Nothing is ever repaired, so there is no second reading to offer.
type DestinationError struct {
	Text    string // at most the first 256 bytes of what was given, raw
	Problem string // a clause: "the port is missing"
}

// Error is one sentence of printable ASCII, whatever Text holds.
func (e *DestinationError) Error() string {
	return quoteBriefly(e.Text) + " is not a destination: " + e.Problem
}

func refuse(text, problem string) error {
	// Cloned, so that a kept error does not keep a whole request head.
	return &DestinationError{Text: strings.Clone(text[:min(len(text), maxErrorText)]), Problem: problem}
}

// quoteBriefly escapes all of text that is not printable ASCII, and cuts the
// result to 256 bytes.
func quoteBriefly(text string) string {
	quoted := strconv.QuoteToASCII(text[:min(len(text), maxErrorText)])
	if len(quoted) <= maxErrorText {
		return quoted
	}
	return quoted[:maxErrorText-4] + `..."`
}

// ParseDestination reads host:port, as in the target of a CONNECT. The port
// is mandatory and plain decimal, 1 to 65535. An IPv6 address stands in
// brackets, and nothing else does. The host is read as by [ParseHost]. Every
// error is a [*DestinationError].
func ParseDestination(hostport string) (Destination, error) {
	host, port, problem := splitPort(hostport)
	if problem != "" {
		return Destination{}, refuse(hostport, problem)
	}
	d := Destination{}
	if d.Port, problem = parsePort(port); problem != "" {
		return Destination{}, refuse(hostport, problem)
	}
	if d.Host, d.Addr, problem = parseHost(host); problem != "" {
		return Destination{}, refuse(hostport, problem)
	}
	return d, nil
}

// ParseHost reads a name or an address without a port, as in a SOCKS request
// or the host part of a URL. An IPv6 address may stand in brackets, a name or
// an IPv4 address may not. Exactly one of name and addr is set when err is
// nil. Names are read as by [ParseName].
//
// IPv4 is four plain decimal octets. IPv6 is what [netip.ParseAddr] takes,
// without a zone; an IPv4-mapped address becomes the IPv4 address. Text whose
// last label is numeric or begins with "0x" is an address or an error.
func ParseHost(host string) (name string, addr netip.Addr, err error) {
	text, addr, problem := parseHost(host)
	switch {
	case problem != "":
		return "", netip.Addr{}, refuse(host, problem)
	case addr.IsValid():
		return "", addr, nil
	default:
		return text, netip.Addr{}, nil
	}
}

// ParseName reads a name and nothing else: for a TLS server name or a DNS
// question. An address, or text that somebody's resolver could take for one,
// is an error.
//
// A name is labels of ASCII letters, digits, "-" and "_", 1 to 63 bytes each,
// at most 253 in all, lower-cased here; no label begins or ends with "-". One
// trailing dot is dropped. A label that begins with "xn--" must be an A-label
// in the one spelling that its U-label has (RFC 5891 §5.3 and §5.4). Other
// labels with "--" in that place are ordinary: RFC 5891 §5.4 forbids them in
// U-labels only, they have no second spelling, and large sites use them.
func ParseName(name string) (string, error) {
	text, problem := parseName(name)
	if problem == "" && endsInNumber(text) {
		problem = "it is a number or an address where a name is needed"
	}
	if problem != "" {
		return "", refuse(name, problem)
	}
	return text, nil
}

func splitPort(hostport string) (host, port, problem string) {
	colon := strings.LastIndexByte(hostport, ':')
	bracket := strings.LastIndexByte(hostport, ']')
	if colon <= bracket {
		return "", "", "the port is missing"
	}
	host, port = hostport[:colon], hostport[colon+1:]
	if bracket < 0 && strings.IndexByte(host, ':') >= 0 {
		return "", "", "it has more than one colon; an IPv6 address needs brackets"
	}
	return host, port, ""
}

func parsePort(text string) (port uint16, problem string) {
	if text == "" {
		return 0, "the port is missing"
	}
	const wrong = "the port is not a plain number from 1 to 65535"
	if len(text) > len("65535") || text[0] == '0' {
		return 0, wrong
	}
	n := 0
	for i := range len(text) {
		digit := text[i] - '0'
		if digit > 9 {
			return 0, wrong
		}
		n = n*10 + int(digit)
	}
	if n > 65535 {
		return 0, wrong
	}
	return uint16(n), ""
}

func parseHost(host string) (text string, addr netip.Addr, problem string) {
	if host != "" && host[0] == '[' {
		if len(host) < 2 || host[len(host)-1] != ']' {
			return "", netip.Addr{}, "the brackets do not match"
		}
		return parseIPv6(host[1 : len(host)-1])
	}
	if strings.IndexByte(host, ':') >= 0 {
		return parseIPv6(host)
	}
	if endsInNumber(host) {
		return parseIPv4(host)
	}
	text, problem = parseName(host)
	if problem == "" && len(text) != len(host) && endsInNumber(text) {
		return "", netip.Addr{}, "an address does not end in a dot"
	}
	return text, netip.Addr{}, problem
}

func parseIPv4(text string) (string, netip.Addr, string) {
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() {
		return "", netip.Addr{}, "it ends in a number and is not four plain decimal octets"
	}
	return text, addr, ""
}

func parseIPv6(text string) (string, netip.Addr, string) {
	if strings.IndexByte(text, '%') >= 0 {
		return "", netip.Addr{}, "an address with a zone is not a destination"
	}
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is6() {
		return "", netip.Addr{}, "what has brackets or colons is not an IPv6 address"
	}
	addr = addr.Unmap()
	var buffer [48]byte
	if canonical := addr.AppendTo(buffer[:0]); string(canonical) != text {
		text = string(canonical)
	}
	return text, addr, ""
}

// endsInNumber reports whether the last label is such that a resolver of the
// inet_aton kind would read the whole as an address: all digits, or "0x…".
func endsInNumber(text string) bool {
	last := text[strings.LastIndexByte(text, '.')+1:]
	if last == "" {
		return false
	}
	if len(last) >= 2 && last[0] == '0' && last[1]|0x20 == 'x' {
		return true
	}
	for i := range len(last) {
		if last[i]-'0' > 9 {
			return false
		}
	}
	return true
}

func parseName(text string) (name, problem string) {
	text = strings.TrimSuffix(text, ".")
	if text == "" {
		return "", "the host is empty"
	}
	if len(text) > maxNameLength {
		return "", "the name is longer than 253 bytes"
	}
	upper, problem := checkBytes(text)
	if problem != "" {
		return "", problem
	}
	if upper {
		text = strings.ToLower(text)
	}
	return text, checkLabels(text)
}

func checkBytes(text string) (upper bool, problem string) {
	for i := range len(text) {
		switch c := text[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '.', c == '_':
		case 'A' <= c && c <= 'Z':
			upper = true
		case c >= 0x80:
			return false, "a name has only ASCII; write its A-labels, xn--..."
		default:
			return false, "a name has only letters, digits, '-', '_' and '.'"
		}
	}
	return upper, ""
}

func checkLabels(name string) (problem string) {
	for more := true; more && problem == ""; {
		var label string
		label, name, more = strings.Cut(name, ".")
		problem = checkLabel(label)
	}
	return problem
}

func checkLabel(label string) (problem string) {
	switch {
	case label == "":
		return "a label is empty"
	case len(label) > maxLabelLength:
		return "a label is longer than 63 bytes"
	case label[0] == '-' || label[len(label)-1] == '-':
		return "a label begins or ends with '-'"
	case strings.HasPrefix(label, "xn--") && !isALabel(label):
		return "a label that begins with xn-- is not a valid A-label"
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

// Registrable returns the part of a canonical name that was registered: the
// public suffix and one label. It is "" for a public suffix and for a name of one
// label.
func Registrable(name string) string {
	registrable, err := publicsuffix.EffectiveTLDPlusOne(name)
	if err != nil {
		return ""
	}
	return registrable
}

// HandedOut reports whether what was registered of a canonical name was handed out by a company to
// whoever asked, as NAME.workers.dev is, and not by a registry: the private part of the
// public suffix list.
func HandedOut(name string) bool {
	suffix, icann := publicsuffix.PublicSuffix(name)
	return !icann && suffix != name && strings.Contains(suffix, ".")
}

// InquiryHost is the host at which egressd itself answers the programs in a sandbox, over plain HTTP at port 80: what they
// may reach, why they were denied, and how to ask for more. It has no address. Ways in answer requests to it; everything
// else to it is refused by the [Baseline], which nothing excepts it from.
const InquiryHost = "egressd.internal"

// InquiryURL is the address to give to programs.
const InquiryURL = "http://" + InquiryHost + "/"

// IsInquiry reports whether a way in answers d itself.
func IsInquiry(d *Destination) bool { return d.Host == InquiryHost && d.Port == 80 }
