package record_test

import (
	"fmt"

	"github.com/egressd/egressd/record"
)

// A reader of a log decodes its lines and looks at the decisions.
func Example() {
	line := `{"v":1,"seq":4,"time":"2026-11-20T09:51:38.362114Z","kind":"open","flow":"01KB6ZQ4SZ","sandbox":"ci","via":"connect",` +
		`"dst":{"host":"evil.test","port":443},"decision":{"action":"deny","rule":"default","layer":"builtin","class":"default-deny"}}`
	r, err := record.Decode([]byte(line))
	if err != nil {
		fmt.Println(err)
		return
	}
	if r.Kind == record.KindOpen && r.Decision.Action == "deny" {
		fmt.Printf("%s asked for %s:%d: %s\n", r.Sandbox, r.Dst.Host, r.Dst.Port, r.Decision.Class)
	}
	// Output: ci asked for evil.test:443: default-deny
}
