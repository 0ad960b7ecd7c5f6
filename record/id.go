package record

import (
	"strings"
	"time"
)

// An ID names one attempt in replies and in records: ten characters of Crockford's base 32 that sort by
// time. It counts ticks of [IDTick] since 1970.
type ID uint64

// IDTick is the time between two IDs.
const IDTick = 4 * time.Microsecond

const (
	idLength  = 10
	crockford = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
)

func (id ID) String() string {
	var b [idLength]byte
	for i := range b {
		b[idLength-1-i] = crockford[id>>(5*i)&31]
	}
	return string(b[:])
}

// Time returns the wall-clock time at which the ID was given.
func (id ID) Time() time.Time { return time.Unix(0, int64(id)*int64(IDTick)) }

// ParseID parses an ID in the form of String.
func ParseID(text string) (id ID, ok bool) {
	if len(text) != idLength {
		return 0, false
	}
	for i := range len(text) {
		n := strings.IndexByte(crockford, text[i])
		if n < 0 {
			return 0, false
		}
		id = id<<5 | ID(n)
	}
	return id, true
}
