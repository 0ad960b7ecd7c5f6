package export

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/egressd/egressd/record"
)

// TestEachFlowHasBothEndpoints in the formats whose tools join by them, also a denial that never had an address.
func TestEachFlowHasBothEndpoints(t *testing.T) {
	records, _ := samples(t)
	denied := func(src, host string) *record.Record {
		return &record.Record{Kind: record.KindOpen, Flow: "01KB6ZQ4SZ", Src: src, Dst: &record.Destination{Host: host, Port: 443}, Decision: &record.Decision{Action: "deny", Class: "default-deny"}}
	}
	records = append(records, denied("10.0.0.1:40000", "evil.test"), denied("[fd99::1]:40000", "evil.test"), denied("", "evil.test"))
	for format, keys := range map[string][4]string{
		"zeek": {"id.orig_h", "id.orig_p", "id.resp_h", "id.resp_p"},
		"eve":  {"src_ip", "src_port", "dest_ip", "dest_port"},
	} {
		encode, _ := Named(format)
		seen := 0
		for _, r := range records {
			if topicOf(r) == aboutSignal {
				continue
			}
			for line := range bytes.Lines(encode(nil, r, testOrigin)) {
				var event map[string]any
				if err := json.Unmarshal(line, &event); err != nil {
					t.Fatal(err)
				}
				seen++
				families, known := map[bool]bool{}, true
				for i, key := range keys {
					text, isText := event[key].(string)
					addr, err := netip.ParseAddr(text)
					if _, isNumber := event[key].(float64); i%2 == 1 && !isNumber || i%2 == 0 && (!isText || err != nil) {
						t.Errorf("%s: %s is %v in %s", format, key, event[key], line)
					}
					if i%2 == 0 {
						families[addr.Is6()] = true
						known = known && !addr.IsUnspecified()
					}
				}
				if !known && len(families) != 1 { // an IPv6 client may well reach an IPv4 host
					t.Errorf("%s: two families in %s", format, line)
				}
			}
		}
		if seen < 8 {
			t.Errorf("%s: %d events", format, seen)
		}
	}
}
