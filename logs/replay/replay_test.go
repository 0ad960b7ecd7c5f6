package replay

import (
	"testing"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/file"
	"github.com/egressd/egressd/record"
)

// TestACutPathIsNotDecidedAgain: the policy would judge its beginning.
func TestACutPathIsNotDecidedAgain(t *testing.T) {
	f, err := file.Parse("f.yaml", []byte("version: 1\nallow: [{host: a.test, paths: ['/x/**']}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := f.Compile(file.Environment{Inspection: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, cut := range []bool{false, true} {
		r := New(&config.Config{File: f}, p)
		r.Add(t.Context(), &record.Record{
			Kind: record.KindRequest, Via: string(policy.ViaHTTP), Dst: &record.Destination{Host: "a.test", Port: 80},
			HTTP: &record.HTTP{Method: "GET", Path: "/y", PathCut: cut}, Decision: &record.Decision{Action: "allow"},
		})
		want := [3]int64{1, 1, 0}
		if cut {
			want = [3]int64{0, 0, 1}
		}
		if got := [3]int64{r.Decided, r.Changed, r.Skipped}; got != want {
			t.Errorf("cut %t: decided, changed and skipped %v, want %v", cut, got, want)
		}
	}
}

// TestWhatNoRecordHoldsIsNotDecidedAgain: a record has no header fields and no query.
func TestWhatNoRecordHoldsIsNotDecidedAgain(t *testing.T) {
	for _, condition := range []string{`headers: {accept: [x]}`, `query: {q: [x]}`, `git: {repos: [a/b]}`} {
		f, err := file.Parse("f.yaml", []byte("version: 1\nallow: [{host: a.test, "+condition+"}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Compile(file.Environment{Inspection: true})
		if err != nil {
			t.Fatal(err)
		}
		r := New(&config.Config{File: f}, p)
		r.Add(t.Context(), &record.Record{
			Kind: record.KindRequest, Via: string(policy.ViaHTTP), Dst: &record.Destination{Host: "a.test", Port: 80},
			HTTP: &record.HTTP{Method: "GET", Path: "/a/b/info/refs"}, Decision: &record.Decision{Action: "allow"},
		})
		if r.Decided != 0 || r.Changed != 0 || r.Skipped != 1 {
			t.Errorf("%s: decided, changed and skipped %d, %d, %d", condition, r.Decided, r.Changed, r.Skipped)
		}
	}
}
