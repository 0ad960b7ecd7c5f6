package dns

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"time"

	miekg "github.com/miekg/dns"

	"github.com/egressd/egressd/policy"
)

const (
	typeA    = miekg.TypeA
	typeAAAA = miekg.TypeAAAA

	headerSize = 12
	maxRecords = 512 // in one message, of any kind
	maxChain   = 16  // aliases in a row
)

var errBroken = errors.New("broken message")

// A reply is what the upstreams said about one type of a name's records.
type reply struct {
	rtype   uint16 // typeA or typeAAAA, or that of other records
	kind    Kind   // zero: there are addresses, or data
	exists  bool   // where kind is NotFound: the name does, without such records
	addrs   []netip.Addr
	data    [][]byte // of other records, checked and without compression
	aliases []string
	ttl     time.Duration // how long this holds, as far as the upstream says
}

// A resource is a resource record whose data is still in the message.
type resource struct {
	owner      string // as plain returns it
	rtype      uint16
	class      uint16
	ttl        uint32
	start, end int // of the data
}

// read fills in r from msg, whose header and question were found to match and
// whose question section ends at end. An answer counts only as far as the
// alias chain that begins at name leads inside this message.
func (r *reply) read(msg []byte, end int, name string) {
	answers, negative, rcode, err := sections(msg, end)
	*r = reply{rtype: r.rtype}
	switch {
	case rcode == miekg.RcodeRefused:
		r.kind = Refused
	case rcode != miekg.RcodeSuccess && rcode != miekg.RcodeNameError:
		r.kind = ServerFailure
	case err != nil:
		r.kind = Malformed
	default:
		r.follow(msg, answers, negative, name)
	}
	if rcode == miekg.RcodeNameError && (r.kind == 0 || r.kind == NotFound) {
		*r = reply{rtype: r.rtype, kind: NotFound, ttl: min(r.ttl, negative)}
	}
}

// follow walks the alias chain from name and takes the records at its end.
// negative is how long it holds that there are none.
func (r *reply) follow(msg []byte, answers []resource, negative time.Duration, name string) {
	aliases, ttl, kind := chain(msg, answers, name)
	if kind != 0 {
		r.kind = kind
		return
	}
	owner := name
	if len(aliases) > 0 {
		owner = aliases[len(aliases)-1]
	}
	r.aliases, r.ttl = aliases, ttl
	for _, rr := range answers {
		if rr.rtype != r.rtype || rr.owner != owner {
			continue
		}
		if !r.take(msg, rr) {
			*r = reply{rtype: r.rtype, kind: Malformed}
			return
		}
		r.ttl = min(r.ttl, seconds(rr.ttl))
	}
	if len(r.addrs)+len(r.data) == 0 {
		r.kind, r.exists, r.ttl = NotFound, true, min(r.ttl, negative)
	}
}

// take adds the data of a record, and reports whether it is well-formed.
func (r *reply) take(msg []byte, rr resource) bool {
	if r.rtype == typeA || r.rtype == typeAAAA {
		addr, ok := addrOf(msg, rr)
		r.addrs = append(r.addrs, addr)
		return ok
	}
	data, ok := dataOf(msg, rr)
	r.data = append(r.data, data)
	return ok
}

// chain returns the aliases that lead away from name, and the smallest TTL on
// the way (the largest possible one where there is no alias).
func chain(msg []byte, answers []resource, name string) (aliases []string, ttl time.Duration, kind Kind) {
	ttl = seconds(1<<32 - 1)
	for owner := name; ; owner = aliases[len(aliases)-1] {
		target, life, err := aliasOf(msg, answers, owner)
		if err != nil {
			return nil, 0, Malformed
		}
		if target == "" {
			return aliases, ttl, 0
		}
		if len(aliases) == maxChain { // a loop ends here too
			return nil, 0, ServerFailure
		}
		aliases = append(aliases, target)
		ttl = min(ttl, seconds(life))
	}
}

// aliasOf returns the canonical name that owner is an alias of, or nothing. A
// name that is an alias of two others is an error (RFC 2181, section 10.1).
func aliasOf(msg []byte, answers []resource, owner string) (target string, ttl uint32, err error) {
	for _, rr := range answers {
		if rr.rtype != miekg.TypeCNAME || rr.owner != owner {
			continue
		}
		presentation, off, err := miekg.UnpackDomainName(msg[:rr.end], rr.start)
		if err != nil || off != rr.end {
			return "", 0, errBroken
		}
		alias := plain(presentation)
		if !canonical(alias) || target != "" && target != alias {
			return "", 0, errBroken
		}
		if target == "" || rr.ttl < ttl {
			ttl = rr.ttl
		}
		target = alias
	}
	return target, ttl, nil
}

func addrOf(msg []byte, rr resource) (netip.Addr, bool) {
	addr, ok := netip.AddrFromSlice(msg[rr.start:rr.end])
	return addr, ok && addr.Is4() == (rr.rtype == typeA)
}

// sections reads the records of msg, which begin at off. It returns those of
// the answer section, for how long the authority section lets a negative
// answer hold, and the response code with its extension (RFC 6891), which is
// valid as far as it could be read even where there is an error.
func sections(msg []byte, off int) (answers []resource, negative time.Duration, rcode int, err error) {
	counts := [...]uint16{
		binary.BigEndian.Uint16(msg[6:]),
		binary.BigEndian.Uint16(msg[8:]),
		binary.BigEndian.Uint16(msg[10:]),
	}
	rcode = int(msg[3] & 0xf)
	if int(counts[0])+int(counts[1])+int(counts[2]) > maxRecords {
		return nil, 0, rcode, errBroken
	}
	for section, count := range counts {
		for range count {
			var rr resource
			if rr, off, err = readRecord(msg, off); err != nil {
				return nil, 0, rcode, err
			}
			switch {
			case section == 0 && rr.class == miekg.ClassINET:
				answers = append(answers, rr)
			case section == 1 && rr.class == miekg.ClassINET && rr.rtype == miekg.TypeSOA:
				negative = negativeTTL(msg, rr)
			case section == 2 && rr.rtype == miekg.TypeOPT:
				rcode |= int(rr.ttl>>24) << 4
			}
		}
	}
	return answers, negative, rcode, nil
}

func readRecord(msg []byte, off int) (resource, int, error) {
	presentation, off, err := miekg.UnpackDomainName(msg, off)
	if err != nil {
		return resource{}, 0, err
	}
	const fixed = 10 // type, class, TTL and length
	if len(msg)-off < fixed {
		return resource{}, 0, errBroken
	}
	rr := resource{
		owner: plain(presentation),
		rtype: binary.BigEndian.Uint16(msg[off:]),
		class: binary.BigEndian.Uint16(msg[off+2:]),
		ttl:   binary.BigEndian.Uint32(msg[off+4:]),
		start: off + fixed,
	}
	rr.end = rr.start + int(binary.BigEndian.Uint16(msg[off+8:]))
	if rr.end > len(msg) {
		return resource{}, 0, errBroken
	}
	return rr, rr.end, nil
}

// negativeTTL is the smaller of a SOA record's own TTL and the minimum in it
// (RFC 2308, section 5).
func negativeTTL(msg []byte, soa resource) time.Duration {
	const shortest = 2 + 5*4 // two root names, five numbers of which minimum is the last
	if soa.end-soa.start < shortest {
		return 0
	}
	minimum := binary.BigEndian.Uint32(msg[soa.end-4:])
	return seconds(min(soa.ttl, minimum))
}

func seconds(ttl uint32) time.Duration { return time.Duration(ttl) * time.Second }

const maxName = 253 // bytes of a name, without its trailing dot

// canonical reports whether name is a host name in the one form that is asked
// for and handed out. The judge is the parser that every destination goes
// through; it refuses every escape of the codec too, and with them a wire label
// that holds a dot.
func canonical(name string) bool {
	parsed, err := policy.ParseName(name)
	return err == nil && parsed == name
}

// plain brings a name from the codec into the form that canonical judges.
func plain(presentation string) string {
	return strings.ToLower(strings.TrimSuffix(presentation, "."))
}
