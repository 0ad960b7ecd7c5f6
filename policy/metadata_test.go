package policy

import (
	"encoding/csv"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

func metadataAddrs() []netip.Addr {
	set, err := metadataServices()
	if err != nil {
		panic(err)
	}
	return slices.Clone(set.addrs)
}

func TestEveryRowOfTheMetadataServices(t *testing.T) {
	lines, err := csv.NewReader(strings.NewReader(metadataList)).ReadAll()
	if err != nil || !slices.Equal(lines[0], []string{"Place", "Cloud", "Service", "Source", "Seen"}) {
		t.Fatal(lines[0], err)
	}
	seen := map[string]bool{}
	for _, line := range lines[1:] {
		place := line[0]
		class := classOfName(place)
		if addr, err := netip.ParseAddr(place); err == nil {
			class = ClassOf(addr)
		}
		if class != AddrMetadata || seen[place] {
			t.Errorf("%s is %q, or stands twice", place, class)
		}
		seen[place] = true
		if _, err := time.Parse(time.DateOnly, line[4]); err != nil || !strings.HasPrefix(line[3], "https://") {
			t.Errorf("%s was seen on %q at %q", place, line[4], line[3])
		}
		for _, cell := range line[1:3] {
			if cell == "" {
				t.Errorf("%s has no cloud or service", place)
			}
		}
	}
}

// TestABrokenListOpensNothing gives the parser lists that say less than they should.
func TestABrokenListOpensNothing(t *testing.T) {
	for _, text := range []string{"", "Place,Cloud\n", "Cloud,Place\nx,169.254.169.254\n", "Place,Cloud\n169.254.169.254/32,x\n", "Place,Cloud\n\"x,y\n", "Place,Cloud\n1.2.3.4\n"} {
		if set, err := parseMetadata(text); err == nil {
			t.Errorf("%q is %v", text, set)
		}
	}
}
