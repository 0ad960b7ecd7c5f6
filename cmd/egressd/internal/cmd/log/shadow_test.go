package log

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/quantity"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
)

// differing is a record of a decision that the shadow would have made otherwise.
func differing(flow, host string, s record.Shadow) *record.Record {
	r := opened(flow, host, "allow")
	r.Shadow = &s
	return r
}

func TestTheLogShowsWhereTheShadowDiffers(t *testing.T) {
	deny := record.Shadow{Action: "deny", Rule: "not-yet", Layer: "organisation", Class: "rule-deny", Reason: "next month", Policy: "sha256:1"}
	a := differing("A", "a.test", deny)
	again := differing("B", "a.test", deny)
	ended := closed(opened("B", "a.test", "allow"), 1, 2, "closed") // whose policy was another by then
	inspects := differing("C", "c.test", record.Shadow{Action: "allow", Inspect: true, Rule: "reads", Layer: "organisation", Policy: "sha256:1"})
	load := &record.Record{Kind: record.KindPolicy, Time: filterNow, Decision: &record.Decision{}, Shadow: &record.Shadow{Policy: "sha256:1"}}
	view := overview{Overview: &logs.Overview{}}
	decisions := logs.DecisionJoiner{Emit: view.Add}
	for _, r := range []*record.Record{load, a, again, ended, inspects, opened("D", "d.test", "allow")} {
		decisions.Add(r)
	}
	decisions.Flush(logs.OutcomeOpen)
	var out strings.Builder
	if err := view.print(&out, filterNow, cli.Palette{}); err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(out.String(), "SHADOW\n")
	lines := strings.Split(strings.TrimSpace(table), "\n")
	want := []string{
		"COUNT DESTINATION WHAT WHO NOW WOULD WHY LAST",
		"2 a.test:443 connect ci allow deny rule-deny (not-yet) " + quantity.Clock(filterNow, filterNow),
		"1 c.test:443 connect ci allow inspect reads " + quantity.Clock(filterNow, filterNow),
	}
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	if shown := line(a, filterNow, cli.Palette{}); !strings.HasSuffix(shown, "A  shadow:deny rule-deny (not-yet)") {
		t.Errorf("the line is %q", shown)
	}
	for filter, passes := range map[string]bool{"shadow:deny": true, "shadow:allow": false, "shadow:inspect": false} {
		f, err := source.ParseFilter([]string{filter}, filterNow)
		if err != nil || f.Match(a) != passes || f.Match(inspects) != (filter == "shadow:inspect") || f.Match(load) {
			t.Errorf("%s: %v", filter, err)
		}
	}
	if _, err := source.ParseFilter([]string{"shadow:dney"}, filterNow); err == nil {
		t.Error("a value that does not exist was taken")
	}
}

func TestWhyTellsOfTheShadow(t *testing.T) {
	dir := t.TempDir()
	record := `{"v":1,"seq":0,"time":"2026-11-20T09:51:38.362114Z","kind":"open","flow":"01KB6ZQ4SZ","sandbox":"ci","via":"connect","dst":{"host":"a.test","port":443},"decision":{"action":"allow","rule":"allow[0]","layer":"user","policy":"sha256:0"},"shadow":{"action":"deny","rule":"not-yet","layer":"organisation","reason":"next month","class":"rule-deny","policy":"sha256:1"}}`
	if err := os.WriteFile(filepath.Join(dir, "00000001.log"), []byte(record+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	o := whyOptions{&logFlags{Source: source.Source{Dir: dir}}}
	if err := o.run(&out, io.Discard, "01KB6"); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "shadow       would deny (rule-deny) by rule not-yet (organisation): next month\n") || !strings.Contains(out.String(), "sha256:1 stands beside") {
		t.Errorf("got\n%s", out.String())
	}
	out.Reset()
	o.json = true
	if err := o.run(&out, io.Discard, "01KB6"); err != nil || !strings.Contains(out.String(), `"shadow":{"action":"deny","rule":"not-yet"`) {
		t.Errorf("%v: %s", err, out.String())
	}
}
