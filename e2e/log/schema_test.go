package log

import (
	"strings"
	"testing"

	"github.com/egressd/egressd/e2e/world"
)

// TestTheSchemaRefuses has lines that differ from records in one thing.
func TestTheSchemaRefuses(t *testing.T) {
	world.Covers(t, "AU-03")
	const good = `{"v":1,"seq":4,"time":"2026-11-20T09:51:38.362114Z","kind":"open","flow":"01KB6ZQ4SZ","count":3,"sandbox":"ci","via":"connect","src":"127.0.0.1:0",` +
		`"dst":{"host":"a.test","port":443,"addrs":["192.0.2.1"]},"tls":{"sni":"a.test","alpn":["h2"]},"process":{"pid":3,"exe":"/bin/x","argv":["x",""]},` +
		`"decision":{"action":"deny","rule":"r","layer":"user","class":"rule-deny","policy":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"}}`
	if err := world.Conforms([]byte(good)); err != nil {
		t.Fatal(err)
	}
	for from, to := range map[string]string{
		`"v":1`:                         `"v":2`,
		`"seq":4`:                       `"seq":"4"`,
		`362114Z`:                       `3621Z`,
		`"kind":"open"`:                 `"kind":"opened"`,
		`"kind":"open",`:                `"kind":"close",`,
		`"flow":"01KB6ZQ4SZ",`:          ``,
		`01KB6ZQ4SZ`:                    `01KB6ZQ4SU`,
		`"count":3`:                     `"count":0`,
		`127.0.0.1:0`:                   `127.0.0.1:4`, // of a sum
		`"via":"connect"`:               `"via":"http2"`,
		`"host":"a.test",`:              ``,
		`"port":443`:                    `"port":70000`,
		`"192.0.2.1"`:                   `"host"`,
		`"alpn":["h2"]`:                 `"alpn":[]`,
		`"sni":"a.test"`:                `"sni":"a.test","more":1`,
		`"pid":3`:                       `"pid":-3`,
		`"action":"deny"`:               `"action":"allow"`, // of a sum
		`,"class":"rule-deny"`:          ``,
		`rule-deny`:                     `no-reason`,
		`"layer":"user",`:               ``,
		`sha256:e3`:                     `sha256:3`,
		`"decision"`:                    `"Decision"`,
		`"sandbox":"ci"`:                `"sandbox":"\u0101"`,
		`"sandbox":"ci",`:               `"sandbox":"ci","raw":"x",`,
		`"sandbox":"ci",` + `"via"`:     `"sandbox":"","via"`,
		`"src":"127.0.0.1:0",` + `"dst`: `"src":"127.0.0.1:0","bytes":{"up":1,"down":1},"dst`,
	} {
		bad := strings.Replace(good, from, to, 1)
		if bad == good {
			t.Fatalf("%s is not there", from)
		}
		if world.Conforms([]byte(bad)) == nil {
			t.Errorf("%s for %s is accepted", to, from)
		}
	}
}
