package verify

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/egressd/egressd/audit/internal/format"
)

// Rows are records as a store has them: in any order, some perhaps twice, of several logs. The zero value has none. About
// 100 bytes of memory hold a record.
type Rows struct {
	logs map[string]*rowsOf
}

// A rowsOf is what a store has of one log.
type rowsOf struct {
	rows    int64
	records map[int64]tlog.Hash
	doubled int64
	changed []int64 // seqs of which there are two records
	cut     []int64 // seqs of which a part is there
	broken  int64   // rows that are no record, and do not say which one they were
	beats   []rowBeat
	claims  []rowClaim
}

// A rowBeat is the state of the log in a heartbeat.
type rowBeat struct {
	Origin  string
	Size    int64
	Root    string
	Follows string
	Had     int64
}

// A rowClaim is what the records before size have to be.
type rowClaim struct {
	size int64
	root tlog.Hash
	by   int64 // the seq of the heartbeat that claims it; -1 for a checkpoint
}

// Add adds a row. line is the stored line of the log. origin is the origin that the row names, or "".
func (rs *Rows) Add(line []byte, origin string) {
	if rs.logs == nil {
		rs.logs = map[string]*rowsOf{}
	}
	l := rs.logs[origin]
	if l == nil {
		l = &rowsOf{records: map[int64]tlog.Hash{}}
		rs.logs[origin] = l
	}
	l.add(line, origin)
}

func (l *rowsOf) add(line []byte, origin string) {
	l.rows++
	seq, err := format.CheckLine(line)
	if err != nil || !json.Valid(line) {
		if seq, ok := seqOf(line); ok {
			l.cut = append(l.cut, seq)
		} else {
			l.broken++
		}
		return
	}
	hash := tlog.RecordHash(line)
	before, there := l.records[seq]
	switch {
	case there && before == hash:
		l.doubled++
		return
	case there:
		l.changed = append(l.changed, seq)
		return
	}
	l.records[seq] = hash
	if !bytes.Contains(line, []byte(`"kind":"heartbeat"`)) {
		return
	}
	beat, ok := beatIn(line)
	if !ok {
		return
	}
	if origin != "" && beat.Origin != origin {
		l.changed = append(l.changed, seq) // a record of another log
		return
	}
	l.beats = append(l.beats, beat)
	if root, err := format.Decode64(beat.Root); err == nil && len(root) == tlog.HashSize {
		l.claims = append(l.claims, rowClaim{beat.Size, tlog.Hash(root), seq})
	}
}

// beatIn reads a heartbeat. Members with other names, also by case alone, are none.
func beatIn(line []byte) (beat rowBeat, ok bool) {
	var members, log map[string]json.RawMessage
	var kind string
	if json.Unmarshal(line, &members) != nil || json.Unmarshal(members["kind"], &kind) != nil || kind != "heartbeat" {
		return beat, false
	}
	_ = json.Unmarshal(members["log"], &log) // what it lacks stays zero
	for name, into := range map[string]any{"origin": &beat.Origin, "size": &beat.Size, "root": &beat.Root, "follows": &beat.Follows, "had": &beat.Had} {
		if text, there := log[name]; there {
			_ = json.Unmarshal(text, into)
		}
	}
	return beat, true
}

// seqOf returns the number of a line that was cut short behind it.
func seqOf(line []byte) (seq int64, ok bool) {
	rest, found := bytes.CutPrefix(line, []byte(`{"v":1,"seq":`))
	digits, _, whole := bytes.Cut(rest, []byte(","))
	if !found || !whole {
		return 0, false
	}
	return format.ParseNumber(string(digits))
}

// A RowSpan is the records from From to To, both included.
type RowSpan struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// A RowsReport is what [Rows.Verify] has found about one log.
type RowsReport struct {
	Origin  string `json:"origin"`
	Code    int    `json:"code"`    // Good, Tampered, Truncated or Unknown
	Verdict string `json:"verdict"` // the code in a word: good, changed, incomplete or unknown

	Rows    int64 `json:"rows"`
	Records int64 `json:"records"` // different ones
	Last    int64 `json:"last"`    // the largest seq; -1 without a record
	Doubled int64 `json:"doubled"` // rows beside the first of the same record

	// Changed are records that differ from what was signed: each span has at least one. Missing are records without a row, also those
	// behind the last row that a checkpoint or a later log knows of. Cut are records of which the store has a part.
	Changed []RowSpan `json:"changed"`
	Missing []RowSpan `json:"missing"`
	Cut     []int64   `json:"cut"`
	Broken  int64     `json:"broken"` // rows that do not say which record they were

	Agreed    int64 `json:"agreed"`    // records from the first on that agree with a heartbeat or a checkpoint behind them
	Unvouched int64 `json:"unvouched"` // records that no checkpoint covers

	Checkpoints int `json:"checkpoints"`  // that were compared
	UnknownKeys int `json:"unknown_keys"` // checkpoints that no known key has signed

	Follows    string `json:"follows,omitempty"`     // the log before, in the same folder
	FollowedBy string `json:"followed_by,omitempty"` // the log after
}

// maxRowSpans bounds the lists of a report.
const maxRowSpans = 1000

// Verify compares the rows of each log with the checkpoints in given, and with the heartbeats among the rows. It sorts the reports by
// origin. keys are root keys. If keys has the root key of a log, a checkpoint of this log needs a signature of the root key, or of a
// key that another given checkpoint hands over to. Checkpoints of other logs count as they are. An error says that keys or given are malformed.
//
// Records behind the first that is missing cannot be compared: the root needs all records before it.
func (rs *Rows) Verify(keys []string, given []byte) ([]RowsReport, error) {
	for _, key := range keys {
		if err := format.CheckKey(key); err != nil {
			return nil, err
		}
	}
	outside, err := parseGiven(given)
	if err != nil {
		return nil, err
	}
	rs.adoptNameless(outside)
	reports := map[string]*RowsReport{}
	for _, origin := range slices.Sorted(maps.Keys(rs.logs)) {
		r := &RowsReport{Origin: origin, Changed: []RowSpan{}, Missing: []RowSpan{}, Cut: []int64{}}
		reports[origin] = r
		rs.logs[origin].given(r, keys, outside)
	}
	had := map[string]int64{} // what later logs say of earlier ones
	for _, origin := range slices.Sorted(maps.Keys(rs.logs)) {
		for _, beat := range rs.logs[origin].beats {
			if beat.Follows == "" {
				continue
			}
			reports[origin].Follows = beat.Follows
			if before := reports[beat.Follows]; before != nil {
				before.FollowedBy = cmp.Or(before.FollowedBy, origin)
				had[beat.Follows] = max(had[beat.Follows], beat.Had)
			}
		}
	}
	var all []RowsReport
	for _, origin := range slices.Sorted(maps.Keys(reports)) {
		rs.logs[origin].verify(reports[origin], had[origin])
		all = append(all, *reports[origin])
	}
	return all, nil
}

// adoptNameless counts rows without an origin to the only log that the rows or the checkpoints name.
func (rs *Rows) adoptNameless(outside []givenNote) {
	nameless := rs.logs[""]
	if nameless == nil {
		return
	}
	names := map[string]bool{}
	for _, beat := range nameless.beats {
		names[beat.Origin] = true
	}
	if len(names) == 0 {
		for _, g := range outside {
			names[g.Origin] = true
		}
	}
	for name := range names {
		if len(names) == 1 && rs.logs[name] == nil {
			rs.logs[name] = nameless
			delete(rs.logs, "")
		}
	}
}

// given takes the checkpoints of a log.
func (l *rowsOf) given(r *RowsReport, keys []string, outside []givenNote) {
	var known []string
	for _, key := range keys {
		if bytes.HasPrefix([]byte(key), []byte(r.Origin+"+")) {
			known = append(known, key)
		}
	}
	signed := len(known) > 0
	for _, g := range outside { // by size, so that a handover comes before what the next key signs
		if g.Origin != r.Origin {
			continue
		}
		if signed {
			i := slices.IndexFunc(known, func(key string) bool { return format.SignedBy(g.note, key) && format.VerifyNote(g.note, key) == nil })
			if i < 0 {
				r.UnknownKeys++
				continue
			}
			if c, err := format.ReadNote(g.note); err == nil && c.Next != "" {
				known = append(known, c.Next)
			}
		}
		r.Checkpoints++
		l.claims = append(l.claims, rowClaim{g.Size, g.Root, -1})
	}
}

// verify fills in what the rows of one log are. A later log says that there were had records.
func (l *rowsOf) verify(r *RowsReport, had int64) {
	seqs := slices.Sorted(maps.Keys(l.records))
	r.Rows, r.Records, r.Doubled, r.Broken, r.Last = l.rows, int64(len(seqs)), l.doubled, l.broken, -1
	l.cut = slices.DeleteFunc(l.cut, func(seq int64) bool { _, whole := l.records[seq]; return whole })
	slices.Sort(l.cut)
	r.Cut = append(r.Cut, slices.Compact(l.cut)...)
	slices.Sort(l.changed)
	for _, seq := range slices.Compact(l.changed) {
		r.Changed = append(r.Changed, RowSpan{seq, seq})
	}
	end := had
	for _, c := range l.claims {
		end = max(end, c.size)
	}
	next := int64(0)
	for _, seq := range seqs {
		l.missing(r, next, seq)
		next, r.Last = seq+1, seq
	}
	l.missing(r, next, max(next, end))
	vouched := l.compare(r)
	r.Unvouched = max(0, r.Last+1-vouched)
	switch {
	case len(r.Changed) > 0 || r.Broken > 0:
		r.Code, r.Verdict = Tampered, "changed"
	case len(r.Missing) > 0 || len(r.Cut) > 0:
		r.Code, r.Verdict = Truncated, "incomplete"
	case r.UnknownKeys > 0 && r.Checkpoints == 0:
		r.Code, r.Verdict = Unknown, "unknown"
	default:
		r.Code, r.Verdict = Good, "good"
	}
	r.Changed, r.Missing = r.Changed[:min(len(r.Changed), maxRowSpans)], r.Missing[:min(len(r.Missing), maxRowSpans)]
	r.Cut = r.Cut[:min(len(r.Cut), maxRowSpans)]
}

// missing adds the records from from to before to, without those that are cut.
func (l *rowsOf) missing(r *RowsReport, from, to int64) {
	for _, seq := range r.Cut {
		if seq >= from && seq < to {
			if from < seq {
				r.Missing = append(r.Missing, RowSpan{from, seq - 1})
			}
			from = seq + 1
		}
	}
	if from < to {
		r.Missing = append(r.Missing, RowSpan{from, to - 1})
	}
}

// compare builds the tree of the records up to the first that is missing, and compares its roots. It returns how many records
// the largest checkpoint that agrees is for.
func (l *rowsOf) compare(r *RowsReport) (vouched int64) {
	slices.SortFunc(l.claims, func(a, b rowClaim) int { return cmp.Compare(a.size, b.size) })
	var tree format.Edge
	for _, c := range l.claims {
		for tree.Size < c.size {
			hash, there := l.records[tree.Size]
			if !there {
				return vouched
			}
			tree.Append(0, hash, nil)
		}
		if tree.Root() != c.root {
			to := max(r.Agreed, c.size-1, c.by) // the heartbeat may be what was changed
			if !slices.ContainsFunc(r.Changed, func(s RowSpan) bool { return s.From >= r.Agreed && s.To <= to }) {
				r.Changed = append(r.Changed, RowSpan{r.Agreed, to})
			}
			return vouched
		}
		r.Agreed = c.size
		if c.by < 0 {
			vouched = c.size
		}
	}
	return vouched
}

// Spans returns spans for people.
func Spans(all []RowSpan) string {
	var b bytes.Buffer
	for i, s := range all {
		switch {
		case i == 10:
			fmt.Fprintf(&b, " and %d more", len(all)-i)
			return b.String()
		case i > 0:
			b.WriteString(", ")
		}
		if fmt.Fprint(&b, s.From); s.To > s.From {
			fmt.Fprintf(&b, " to %d", s.To)
		}
	}
	return b.String()
}
