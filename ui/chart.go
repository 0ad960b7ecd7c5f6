package ui

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/egressd/egressd/logs/index"
)

// A barChart shows decisions by time.
type barChart struct {
	Width, Height int
	Bars          []bar
	Step          string
	From, To      time.Time
	Marks         []time.Time // below the chart
	Most          int64       // asked and allowed in a bar
	MostDenied    int64       // in a bar; 0 if nothing was denied, and then the others have the whole height
	Base          int         // where the bars of what was not denied begin; those of denials hang below it
	Narrowed      string      // the URL without the span of time, if there is one
}

// A bar is one span of time. Denials hang below the line, on a scale of their own, which shows a few denials beside many other decisions.
type bar struct {
	From, To               time.Time
	URL                    string
	Allowed, Denied, Asked int64
	X, Width               float64
	Denies, Asks, Allows   span
}

type span struct{ Y, Height float64 }

// steps are the widths of a bar, in minutes.
var steps = []struct {
	minutes int64
	name    string
}{{1, "minute"}, {5, "5 minutes"}, {15, "15 minutes"}, {60, "hour"}, {180, "3 hours"}, {720, "12 hours"}, {1440, "day"}, {7 * 1440, "week"}, {28 * 1440, "4 weeks"}, {364 * 1440, "year"}}

const (
	chartWidth  = 1000
	chartHeight = 100
	deniedPart  = 40  // of the height
	smallest    = 1.5 // height of a bar that is not empty
	fewestBars  = 30  // that the width has space for
)

// bars draws the decisions of sum, with at most as many bars as most.
func bars(sum *index.Sum, q *query, most int64) *barChart {
	c := &barChart{Width: chartWidth, Height: chartHeight, Base: chartHeight}
	if len(sum.Minutes) == 0 {
		return c
	}
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for m := range sum.Minutes {
		first, last = min(first, m), max(last, m)
	}
	step := steps[len(steps)-1]
	for _, one := range steps {
		if last/one.minutes-first/one.minutes < most {
			step = one
			break
		}
	}
	n := min(last/step.minutes-first/step.minutes+1, most)
	begin := last/step.minutes - n + 1
	c.Bars, c.Step = make([]bar, n), step.name
	for m, counts := range sum.Minutes {
		i := m/step.minutes - begin
		if i < 0 {
			continue
		}
		b := &c.Bars[i]
		b.Allowed, b.Denied, b.Asked = b.Allowed+counts.Allowed, b.Denied+counts.Denied, b.Asked+counts.Asked
	}
	for _, b := range c.Bars {
		c.Most, c.MostDenied = max(c.Most, b.Allowed+b.Asked), max(c.MostDenied, b.Denied)
	}
	if c.MostDenied > 0 {
		c.Base = chartHeight - deniedPart
	}
	before := max(0, fewestBars-n) // empty ones, so that the bars of a young log are no wider than others
	width := float64(chartWidth) / float64(before+n)
	for i := range c.Bars {
		b := &c.Bars[i]
		b.From = time.Unix((begin+int64(i))*step.minutes*60, 0)
		b.To = b.From.Add(time.Duration(step.minutes) * time.Minute)
		b.URL = q.with("/timeline", between(b.From, b.To)...)
		b.X, b.Width = round(float64(before+int64(i))*width), round(width*0.82)
		if b.Denied > 0 {
			b.Denies = span{float64(c.Base), tall(b.Denied, c.MostDenied, deniedPart)}
		}
		y := float64(c.Base)
		for _, part := range []struct {
			n    int64
			into *span
		}{{b.Asked, &b.Asks}, {b.Allowed, &b.Allows}} {
			if part.n == 0 {
				continue
			}
			part.into.Height = tall(part.n, c.Most, float64(c.Base)-2*smallest)
			y -= part.into.Height
			part.into.Y = round(y)
		}
	}
	c.From, c.To = c.Bars[0].From.Add(-time.Duration(before*step.minutes)*time.Minute), c.Bars[n-1].To
	c.Marks = []time.Time{c.From, c.To}
	if q.without("since", "until") != q.without() {
		c.Narrowed = q.without("since", "until")
	}
	return c
}

// tall is the height of a part of a bar.
func tall(n, most int64, height float64) float64 {
	return round(max(smallest, float64(n)/float64(most)*height))
}

func round(f float64) float64 { return math.Round(f*100) / 100 }

// A tile is one rectangle of a treemap.
type tile struct {
	X, Y, Width, Height float64
	Name                string
	URL                 string
	Size                int64
	Level               level
	Fits                bool // the name fits into the tile
}

// treemap lays tiles out in a rectangle, so that areas are as their sizes, and tiles nearly square (Bruls,
// Huizing and van Wijk, 2000). Tiles of size 0 are left out.
func treemap(tiles []tile, width, height float64) []tile {
	tiles = slices.DeleteFunc(slices.Clone(tiles), func(t tile) bool { return t.Size <= 0 })
	slices.SortStableFunc(tiles, func(a, b tile) int { return cmp.Compare(b.Size, a.Size) })
	total := 0.0
	for _, t := range tiles {
		total += float64(t.Size)
	}
	scale := width * height / max(total, 1)
	x, y := 0.0, 0.0
	for rest := tiles; len(rest) > 0; {
		side := min(width-x, height-y)
		n := rowOf(rest, side, scale)
		area := 0.0
		for _, t := range rest[:n] {
			area += float64(t.Size) * scale
		}
		thick, along := area/max(side, 1e-9), 0.0
		for i := range rest[:n] {
			t := &rest[i]
			length := float64(t.Size) * scale / max(thick, 1e-9)
			if width-x >= height-y { // a column at the left
				t.X, t.Y, t.Width, t.Height = x, y+along, thick, length
			} else {
				t.X, t.Y, t.Width, t.Height = x+along, y, length, thick
			}
			along += length
			t.X, t.Y, t.Width, t.Height = round(t.X), round(t.Y), round(t.Width), round(t.Height)
			t.Fits = t.Height > 34 && t.Width > 14+8.2*float64(min(len(t.Name), 40))
		}
		if width-x >= height-y {
			x += thick
		} else {
			y += thick
		}
		rest = rest[n:]
	}
	return tiles
}

// rowOf returns how many of the first tiles stand in one row along a side, so that the worst of them is as
// square as it can be.
func rowOf(tiles []tile, side, scale float64) int {
	sum, best := 0.0, math.Inf(1)
	largest := float64(tiles[0].Size) * scale
	for i, t := range tiles {
		area := float64(t.Size) * scale
		sum += area
		worst := max(side*side*largest/(sum*sum), sum*sum/(side*side*area))
		if worst > best {
			return i
		}
		best = worst
	}
	return len(tiles)
}
