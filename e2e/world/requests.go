package world

import (
	"slices"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A LoggedRequest is a request that a program makes, as it has to stand in the log.
type LoggedRequest struct {
	Method, Path string
	Status       int          // of the response, 0 where it was denied
	Class        policy.Class // of the denial
}

// LogMark returns the number of records so far.
func (d *Daemon) LogMark(t *testing.T) int {
	t.Helper()
	mark, err := d.Log.Mark()
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

// ExpectRequest checks what the log says of a request that was made after the mark.
func (d *Daemon) ExpectRequest(t *testing.T, mark int, a LoggedRequest) {
	t.Helper()
	var records []record.Record
	var request, end *record.Record
	found := func() bool {
		records, _ = d.Log.Since(mark)
		request, end = FindRequest(records, a)
		return request != nil && (end != nil || a.Status == 0)
	}
	if !Eventually(Settling, found) {
		t.Errorf("the log does not tell of %s %s: %+v", a.Method, a.Path, records)
		return
	}
	if request.TLS == nil || !request.TLS.Inspected {
		t.Errorf("the request's record does not say that it was inspected: %+v", request.TLS)
	}
	if a.Status == 0 {
		if request.Decision.Action != "deny" || request.Decision.Class != string(a.Class) {
			t.Errorf("%s %s was decided %+v", a.Method, a.Path, request.Decision)
		}
		return
	}
	if request.Decision.Action != "allow" || end.HTTP == nil || end.HTTP.Status != a.Status || end.Outcome != "closed" {
		t.Errorf("%s %s was decided %+v and ended %+v %+v", a.Method, a.Path, request.Decision, end, end.HTTP)
	}
	if b := end.Bytes; b == nil || b.Down == 0 || a.Method == "POST" && b.Up == 0 {
		t.Errorf("%s %s carried %+v", a.Method, a.Path, b)
	}
}

// NothingRefused fails where egressd has refused anything after the mark, which a tool may have hidden.
func (d *Daemon) NothingRefused(t *testing.T, mark int) {
	t.Helper()
	records, err := d.Log.Since(mark)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if r.Decision != nil && r.Decision.Action == "deny" || r.Outcome == record.Outcome(policy.CredentialRefused) {
			t.Errorf("egressd refused %+v: %+v %s", r.HTTP, r.Decision, r.Outcome)
		}
	}
}

// FindRequest finds the records of a request's decision and of its end.
func FindRequest(records []record.Record, a LoggedRequest) (request, end *record.Record) {
	of := func(r record.Record) bool {
		return r.Kind == record.KindRequest && r.HTTP != nil && r.HTTP.Method == a.Method && r.HTTP.Path == a.Path
	}
	i := slices.IndexFunc(records, of)
	if i < 0 {
		return nil, nil
	}
	request = &records[i]
	j := slices.IndexFunc(records, func(r record.Record) bool { return r.Kind == record.KindClose && r.Flow == request.Flow })
	if j < 0 {
		return request, nil
	}
	return request, &records[j]
}
