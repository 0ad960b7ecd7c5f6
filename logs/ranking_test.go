package logs

import (
	"fmt"
	"testing"

	"github.com/egressd/egressd/record"
)

// TestRankingsAreBoundedAndExact counts values that are ever new, one that comes
// late and often, and one that sends much.
func TestRankingsAreBoundedAndExact(t *testing.T) {
	count := func(k *Ranking) {
		for i := range 20 * fewGroups {
			k.Add(fmt.Sprintf("v%d", i), opened("A", "a.test", "deny"))
			if i > 10*fewGroups && i%4 == 0 {
				k.Add("late", opened("A", "a.test", "allow"))
			}
			if i == 5*fewGroups {
				k.Add("sends", closed(opened("A", "a.test", "allow"), 1000, 1, "closed"))
			}
		}
	}
	first := &Ranking{max: fewGroups}
	count(first)
	if first.Exact() || len(first.entries) > 2*fewGroups {
		t.Errorf("exact: %v, with %d values", first.Exact(), len(first.entries))
	}
	again := first.Again()
	count(again)
	total := again.rest.Count
	for _, e := range again.Top(0) {
		total += e.Count
	}
	late := again.Top(1)[0]
	if want := int64(10*fewGroups/4 - 1); late.Value != "late" || late.Count != want || late.Denied != 0 || total != 20*fewGroups+want+1 {
		t.Errorf("most is %+v, all are %d", late, total)
	}
	if e := again.entries["sends"]; e == nil || e.Up != 1000 || e.Count != 1 {
		t.Errorf("what sent much is %+v", e)
	}
}

func TestPivotCountsEachDecisionInOneCell(t *testing.T) {
	var rows, columns Ranking
	add := func(do func(row, column string, r *record.Record)) {
		for i := range 100 {
			do(fmt.Sprint("r", i%10*i%10), fmt.Sprint("c", i%7), opened("A", "a.test", "deny"))
		}
	}
	add(func(row, column string, r *record.Record) { rows.Add(row, r); columns.Add(column, r) })
	p := Pivot{Rows: rows.Only(3), Columns: columns.Only(2)}
	add(func(row, column string, r *record.Record) { p.Add(row, column, 2, r) })
	total := int64(0)
	for _, row := range append(p.Rows.Top(0), nil) {
		for _, column := range append(p.Columns.Top(0), nil) {
			total += p.Cell(row, column)
		}
	}
	if total != 200 || len(p.Rows.Top(0)) != 3 || len(p.Columns.Top(0)) != 2 || p.Cell(nil, nil) == 0 {
		t.Errorf("%d in all cells, want 200", total)
	}
}

func TestEveryFieldIsOne(t *testing.T) {
	for _, name := range FieldNames {
		field := Field(name)
		if field == nil {
			t.Errorf("%s is listed and is none", name)
			continue
		}
		field(&record.Record{})
		if got := field(sample()); got == "" && name != "addr" && name != "sni" && name != "status" {
			t.Errorf("%s of the sample is empty", name)
		}
	}
	if got := Field("domain")(opened("A", "a.b.evil.co.uk", "deny")); got != "evil.co.uk" {
		t.Errorf("the domain is %s", got)
	}
	if Field("kind") != nil || Field("nothing") != nil {
		t.Error("there are fields that are not listed")
	}
}
