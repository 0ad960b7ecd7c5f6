package ui

import (
	"cmp"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// A level says how much of a flow egressd could judge, from most to least.
type level int

const (
	contentSeen level = iota // it read the request: method, path and body
	hostOnly                 // an encrypted tunnel to a name that TLS confirmed
	blind                    // neither: an address, or a protocol that it does not read
	unruled                  // no rule was about it
)

// levelTexts describe the levels in the order of their numbers.
var levelTexts = []struct{ Name, Says string }{
	{"content seen", "egressd read method, path and content of each request"},
	{"host only", "an encrypted tunnel to an allowed name; the content was not seen"},
	{"blind", "an address, or a protocol that egressd does not read"},
	{"no rule", "let pass because nothing denied it: default: allow, or learn"},
}

func (l level) Name() string { return levelTexts[l].Name }

// levelOf judges a decision by its record alone, because the policy of that time may be gone.
func levelOf(r *record.Record) level {
	switch {
	case r.Decision.Rule == policy.LearnRule || r.Decision.Rule == "default":
		return unruled
	case r.Kind == record.KindRequest, r.HTTP != nil: // its close record, too
		return contentSeen
	case r.TLS != nil && r.TLS.SNI != "" && !isAddress(logs.Host(r)):
		return hostOnly
	default:
		return blind
	}
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}

// A sentRow sums what went up to one destination at one level.
type sentRow struct {
	Destination string
	Level       level
	Up, Down    int64
	Count       int64
	Programs    []string
	Rules       []string
	Last        time.Time
	URL         string
}

type sentView struct {
	Up, Unseen, Unruled int64
	Requests            int64
	Levels              []levelSum
	Tiles               []tile
	Rows                []*sentRow
	More                int
}

type levelSum struct {
	Level    level
	Says     string
	Up       int64
	Count    int64
	X, Width float64 // of its part of a bar 1000 wide
}

const (
	sentShown  = 100
	tilesShown = 40
	mapWidth   = 1000
	mapHeight  = 260
)

func (s *Server) sent(w http.ResponseWriter, r *http.Request) {
	q := s.readQuery(r, "/sent")
	sum := s.index.Sum(r.Context(), q.filter, nil)
	v := sentView{Levels: make([]levelSum, len(levelTexts))}
	for i := range v.Levels {
		v.Levels[i].Level, v.Levels[i].Says = level(i), levelTexts[i].Says
	}
	type key struct {
		destination string
		level       level
	}
	all := map[key]*sentRow{}
	s.index.Shapes(slices.Sorted(maps.Keys(sum.Totals)), func(id uint32, r *record.Record) {
		t := sum.Totals[id]
		if r.Decision.Action != "allow" && t.Up == 0 || r.DNS != nil {
			return
		}
		l := levelOf(r)
		v.Up, v.Requests = v.Up+t.Up, v.Requests+t.Count
		v.Levels[l].Up, v.Levels[l].Count = v.Levels[l].Up+t.Up, v.Levels[l].Count+t.Count
		if r.Kind != record.KindRequest {
			v.Unseen += t.Up
		}
		if l == unruled {
			v.Unruled += t.Up
		}
		k := key{logs.Destination(r), l}
		row := all[k]
		if row == nil {
			row = &sentRow{Destination: k.destination, Level: l, URL: q.with("/requests", append(hostTerms(k.destination), term("verdict", "allow"))...)}
			all[k] = row
		}
		row.Up, row.Down, row.Count = row.Up+t.Up, row.Down+t.Down, row.Count+t.Count
		row.Programs = noted(row.Programs, logs.Who(r))
		row.Rules = noted(row.Rules, r.Decision.Rule)
		if last := at(t.Last); last.After(row.Last) {
			row.Last = last
		}
	})
	v.Rows = slices.SortedFunc(maps.Values(all), func(a, b *sentRow) int {
		return cmp.Or(cmp.Compare(b.Up, a.Up), cmp.Compare(b.Level, a.Level), cmp.Compare(a.Destination, b.Destination))
	})
	v.finish(q)
	s.write(w, r, http.StatusOK, "sent", q, sum, v)
}

// finish lays out the charts and cuts the table.
func (v *sentView) finish(q *query) {
	x := 0.0
	for i := range v.Levels {
		l := &v.Levels[i]
		if v.Up > 0 {
			l.X, l.Width = x, round(float64(l.Up)/float64(v.Up)*mapWidth)
			x += l.Width
		}
	}
	var tiles []tile
	for i, row := range v.Rows {
		if i == tilesShown {
			rest := tile{Name: "others", Level: hostOnly}
			for _, row := range v.Rows[i:] {
				rest.Size, rest.Level = rest.Size+row.Up, max(rest.Level, row.Level)
			}
			tiles = append(tiles, rest)
			break
		}
		name, _ := strings.CutSuffix(row.Destination, ":443")
		tiles = append(tiles, tile{Name: name, URL: row.URL, Size: row.Up, Level: row.Level})
	}
	v.Tiles = treemap(tiles, mapWidth, mapHeight)
	sorted(q, v.Rows, map[string]func(a, b *sentRow) int{
		"dest": by(func(r *sentRow) string { return r.Destination }), "up": by(func(r *sentRow) int64 { return r.Up }), "level": by(func(r *sentRow) level { return r.Level }),
		"count": by(func(r *sentRow) int64 { return r.Count }), "down": by(func(r *sentRow) int64 { return r.Down }),
		"who": by(func(r *sentRow) string { return strings.Join(r.Programs, " ") }), "rule": by(func(r *sentRow) string { return strings.Join(r.Rules, " ") }),
		"last": func(a, b *sentRow) int { return a.Last.Compare(b.Last) },
	})
	if len(v.Rows) > sentShown {
		v.More, v.Rows = len(v.Rows)-sentShown, v.Rows[:sentShown]
	}
}
