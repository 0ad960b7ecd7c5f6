package policy

import (
	_ "embed"
	"encoding/csv"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/gaissmai/bart"
)

// An AddressClass names the special-purpose space that an address or a name
// lies in; it is "" for what is publicly reachable. The values stand in the
// audit log as dst.class and are a contract.
type AddressClass string

const (
	AddrLoopback      AddressClass = "loopback"
	AddrPrivate       AddressClass = "private"
	AddrLinkLocal     AddressClass = "link-local"
	AddrMetadata      AddressClass = "metadata" // where a cloud hands out credentials
	AddrCGNAT         AddressClass = "cgnat"
	AddrThisNetwork   AddressClass = "this-network"
	AddrUnspecified   AddressClass = "unspecified" // a connection to it is one to loopback
	AddrDocumentation AddressClass = "documentation"
	AddrBenchmarking  AddressClass = "benchmarking"
	AddrMulticast     AddressClass = "multicast"
	AddrBroadcast     AddressClass = "broadcast"
	AddrReserved      AddressClass = "reserved" // also what is no address, or has a zone
	AddrUniqueLocal   AddressClass = "unique-local"
	AddrProtocol      AddressClass = "protocol-assignments"
	AddrDiscard       AddressClass = "discard"
	AddrDeprecated    AddressClass = "deprecated"
	AddrSegmentRoute  AddressClass = "segment-routing"
	AddrUnallocated   AddressClass = "unallocated" // IPv6 outside 2000::/3
	AddrNAT64Local    AddressClass = "nat64-local"
	Addr6to4          AddressClass = "6to4"
	AddrTeredo        AddressClass = "teredo"
	AddrSelf          AddressClass = "self"       // the host's own, or egressd's listener
	AddrLocalName     AddressClass = "local-name" // a name with no meaning on the Internet

	// addrNAT64 marks the well-known prefix in the table. ClassOf never returns it: the
	// embedded IPv4 address alone gives the class.
	addrNAT64 AddressClass = "nat64"
)

// needsUnsafe reports whether an allow rule is not enough to open the class.
func (c AddressClass) needsUnsafe() bool {
	switch c {
	case AddrLoopback, AddrUnspecified, AddrLinkLocal, AddrMetadata, AddrSelf:
		return true
	}
	return false
}

// ClassOf returns the class of addr, which is "" only if every packet for it
// belongs on the public Internet: IPv4 minus the IANA special-purpose
// registry, and 2000::/3 minus that of IPv6.
//
// An IPv4 address inside an IPv6 one (mapped, compatible, NAT64, 6to4, Teredo,
// ISATAP) is judged as IPv4. If that is public, the outer address must be public too.
// NAT64 and ISATAP then are. 6to4 and Teredo are refused, because the registry does not
// call them globally reachable; compatible addresses are, because they lie outside
// 2000::/3. An address with a zone, and the zero Addr, are never public.
func ClassOf(addr netip.Addr) AddressClass {
	class, _ := classify(addr)
	return class
}

// classify is ClassOf, and reports whether the class comes from the IPv4
// address inside addr.
func classify(addr netip.Addr) (class AddressClass, embedded bool) {
	if addr.Zone() != "" {
		if class = ClassOf(addr.WithZone("")); class == "" {
			class = AddrReserved
		}
		return class, false
	}
	addr = addr.Unmap()
	outer := tableClass(addr)
	if outer.needsUnsafe() {
		return outer, false
	}
	if v4 := EmbeddedIPv4(addr); v4.IsValid() {
		if class = tableClass(v4); class != "" {
			return class, true
		}
		if outer == addrNAT64 {
			return "", false
		}
	}
	return outer, false
}

func tableClass(addr netip.Addr) AddressClass {
	space, _ := specialSpace()
	if space == nil || !addr.IsValid() {
		return AddrReserved
	}
	class, found := space.Lookup(addr)
	if !found {
		return AddrReserved
	}
	return class
}

// prefixClass returns the class of the registry's block that a prefix lies in,
// "" where the prefix reaches into public space or is judged address by
// address.
func prefixClass(prefix netip.Prefix) AddressClass {
	if prefix.IsSingleIP() {
		return ClassOf(prefix.Addr())
	}
	space, _ := specialSpace()
	if space == nil || prefix.Contains(globalUnicast.Addr()) {
		return ""
	}
	class, _ := space.LookupPrefix(prefix)
	if class == addrNAT64 {
		return ""
	}
	return class
}

// EmbeddedIPv4 returns the IPv4 address inside an IPv6 address, to which a
// translator or a tunnel could deliver: compatible (RFC 4291 §2.5.5.1), mapped,
// NAT64 (RFC 6052 §2.2, 96-bit prefixes), 6to4 (RFC 3056), the client of Teredo
// (RFC 4380 §4) and ISATAP (RFC 5214 §6.1). It is the zero Addr where there is
// none. A denied IPv4 prefix that is to hold on every path has to be matched
// against it as well.
func EmbeddedIPv4(addr netip.Addr) netip.Addr {
	if !addr.Is6() {
		return netip.Addr{}
	}
	b := addr.WithZone("").As16()
	switch tableClass(addr.WithZone("").Unmap()) {
	case Addr6to4:
		return netip.AddrFrom4([4]byte(b[2:6]))
	case AddrTeredo:
		return netip.AddrFrom4([4]byte{^b[12], ^b[13], ^b[14], ^b[15]})
	case addrNAT64, AddrNAT64Local:
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	if addr.Is4In6() || compatible.Contains(addr) || isISATAP(b) {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.Addr{}
}

// isISATAP ignores the universal and group bits, which differ by whether the
// IPv4 address is unique.
func isISATAP(b [16]byte) bool {
	return b[8]&^3 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

// These tables are built once and never written again.
var (
	//go:embed iana/ipv4-special-registry.csv
	ipv4Registry string
	//go:embed iana/ipv6-special-registry.csv
	ipv6Registry string

	// specialSpace returns nil if a registry does not parse; then no address is
	// public. It is made when it is needed first.
	specialSpace = sync.OnceValues(func() (*bart.Table[AddressClass], error) {
		return newSpecialSpace(ipv4Registry, ipv6Registry)
	})

	globalUnicast = netip.MustParsePrefix("2000::/3")
	compatible    = netip.MustParsePrefix("::/96")
)

// unregistered lists the space that the special-purpose registries leave to
// other registries: what is allocated at all, and multicast.
func unregistered() map[netip.Prefix]AddressClass {
	return map[netip.Prefix]AddressClass{
		netip.MustParsePrefix("0.0.0.0/0"):   "",
		netip.MustParsePrefix("224.0.0.0/4"): AddrMulticast,
		netip.MustParsePrefix("::/0"):        AddrUnallocated,
		globalUnicast:                        "",
		netip.MustParsePrefix("ff00::/8"):    AddrMulticast,
	}
}

func newSpecialSpace(registries ...string) (*bart.Table[AddressClass], error) {
	table := new(bart.Table[AddressClass])
	for prefix, class := range unregistered() {
		table.Insert(prefix, class)
	}
	for _, text := range registries {
		rows, err := parseRegistry(text)
		if err != nil {
			return nil, fmt.Errorf("read a special-purpose registry: %w", err)
		}
		for _, row := range rows {
			table.Insert(row.prefix, row.class)
		}
	}
	services, err := metadataServices()
	if err != nil {
		return nil, fmt.Errorf("read the list of metadata services: %w", err)
	}
	for _, addr := range services.addrs {
		table.Insert(netip.PrefixFrom(addr, addr.BitLen()), AddrMetadata)
	}
	return table, nil
}

// A registryRow is one address block of a registry. Its class is "" where the
// registry says that it is globally reachable.
type registryRow struct {
	prefix netip.Prefix
	class  AddressClass
}

func parseRegistry(text string) ([]registryRow, error) {
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return nil, err
	}
	if len(lines) < 2 {
		return nil, errors.New("no rows")
	}
	blocks := slices.Index(lines[0], "Address Block")
	name := slices.Index(lines[0], "Name")
	reachable := slices.Index(lines[0], "Globally Reachable")
	if blocks < 0 || name < 0 || reachable < 0 {
		return nil, fmt.Errorf("a column is missing in %q", lines[0])
	}
	var rows []registryRow
	for _, line := range lines[1:] {
		class := registryClass(line[name], withoutFootnote(line[reachable]) == "True")
		for block := range strings.SplitSeq(line[blocks], ", ") {
			prefix, err := netip.ParsePrefix(withoutFootnote(block))
			if err != nil {
				return nil, err
			}
			rows = append(rows, registryRow{prefix.Masked(), class})
		}
	}
	return rows, nil
}

// withoutFootnote drops the mark of "192.0.0.0/24 [2]".
func withoutFootnote(cell string) string {
	text, _, _ := strings.Cut(cell, " [")
	return text
}

// registryClass turns the name of a row into a class. A row that is new to
// this list is closed like the others, as "reserved".
func registryClass(name string, reachable bool) AddressClass {
	const translation = "IPv4-IPv6 Translat."
	switch {
	case reachable && name == translation:
		return addrNAT64
	case reachable:
		return ""
	case name == translation:
		return AddrNAT64Local
	case strings.HasPrefix(name, "Documentation"):
		return AddrDocumentation
	case strings.HasPrefix(name, "Deprecated"):
		return AddrDeprecated
	}
	if class, known := registryNames[name]; known {
		return class
	}
	return AddrReserved
}

// registryNames is never written.
var registryNames = map[string]AddressClass{
	`"This network"`:                 AddrThisNetwork,
	`"This host on this network"`:    AddrUnspecified,
	"Private-Use":                    AddrPrivate,
	"Shared Address Space":           AddrCGNAT,
	"Loopback":                       AddrLoopback,
	"Link Local":                     AddrLinkLocal,
	"IETF Protocol Assignments":      AddrProtocol,
	"IPv4 Service Continuity Prefix": AddrProtocol,
	"IPv4 dummy address":             AddrProtocol,
	"NAT64/DNS64 Discovery":          AddrProtocol,
	"6a44-relay anycast address":     AddrDeprecated, // in the block of the 6to4 relays
	"Benchmarking":                   AddrBenchmarking,
	"Limited Broadcast":              AddrBroadcast,
	"Loopback Address":               AddrLoopback,
	"Unspecified Address":            AddrUnspecified,
	"Discard-Only Address Block":     AddrDiscard,
	"Dummy IPv6 Prefix":              AddrDiscard,
	"TEREDO":                         AddrTeredo,
	"6to4":                           Addr6to4,
	"Segment Routing (SRv6) SIDs":    AddrSegmentRoute,
	"Unique-Local":                   AddrUniqueLocal,
	"Link-Local Unicast":             AddrLinkLocal,
}

// metadataList says where clouds answer with instance data and credentials, one place a row:
// an address or a name, the cloud, the service, sources that say so, and the day on which the
// first source was last seen to say so.
//
//go:embed cloud/metadata.csv
var metadataList string

// A metadataSet is the places of the list. Names below one of its names are special too.
type metadataSet struct {
	addrs []netip.Addr
	names map[string]bool
}

var metadataServices = sync.OnceValues(func() (metadataSet, error) { return parseMetadata(metadataList) })

func parseMetadata(text string) (set metadataSet, err error) {
	lines, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		return set, err
	}
	if len(lines) < 2 || lines[0][0] != "Place" {
		return set, errors.New("no rows, or other columns")
	}
	set.names = map[string]bool{}
	for _, line := range lines[1:] {
		name, addr, err := ParseHost(line[0])
		switch {
		case err != nil:
			return set, err
		case addr.IsValid():
			set.addrs = append(set.addrs, addr)
		default:
			set.names[name] = true
		}
	}
	return set, nil
}

// specialNames lists names with a meaning only on this machine or network. Every name below a special one is special, too. RFC 6761 and the
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
