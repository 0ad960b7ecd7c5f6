package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// labelsOf returns one label of each kind that patterns of one label tell apart, all directly below one name. It prefers
// labels that are none of names: at a name, closer lines decide some of what others decide elsewhere.
func labelsOf(patterns []Pattern, names []string) []string {
	taken := map[string]bool{}
	for _, name := range names {
		taken[name] = true
	}
	var used strings.Builder
	for _, p := range patterns {
		used.WriteString(p.name)
	}
	fresh := strings.IndexFunc(labelLetters, func(c rune) bool { return !strings.ContainsRune(used.String(), c) })
	labels := labelKinds(patterns, nil)
	for i, label := range labels {
		begins, ends := "", ""
		for _, p := range patterns {
			before, after, _ := p.aroundStar()
			if strings.HasPrefix(label, before) && len(before) > len(begins) {
				begins = before
			}
			if strings.HasSuffix(label, after) && len(after) > len(ends) {
				ends = after
			}
		}
		for n := 1; fresh >= 0 && taken[labels[i]] && n+len(begins)+len(ends) <= maxLabelLength; n++ {
			labels[i] = begins + strings.Repeat(labelLetters[fresh:fresh+1], n) + ends
		}
		if taken[labels[i]] {
			return labelKinds(patterns, names)
		}
	}
	return labels
}

const labelLetters = "abcdefghijklmnopqrstuvwxyz0123456789_"

// labelKinds returns one label of each kind that patterns of one label and names, all directly below one name, tell
// apart. Two labels are of one kind if they match the same beginnings, endings and names. The labels are found by going
// through the states of an automaton, shortest first.
func labelKinds(patterns []Pattern, names []string) (labels []string) {
	begins, ends, exact := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range patterns {
		before, after, _ := p.aroundStar()
		begins[before], ends[after] = true, true
	}
	for _, name := range names {
		exact[name] = true
	}
	// A state is the text read, while it can still become a name or a beginning, and the suffix that can still become an ending.
	beginning, ending := map[string]bool{}, map[string]bool{}
	letters := map[byte]bool{}
	for _, set := range []map[string]bool{begins, ends, exact} {
		for text := range set {
			for n := range len(text) + 1 {
				beginning[text[:n]] = beginning[text[:n]] || !ends[text] || begins[text] || exact[text]
				ending[text[:n]] = ending[text[:n]] || ends[text]
				if n > 0 {
					letters[text[n-1]] = true
				}
			}
		}
	}
	if fresh := strings.IndexFunc(labelLetters, func(c rune) bool { return !letters[byte(c)] }); fresh >= 0 {
		letters[labelLetters[fresh]] = true
	}
	letters['-'] = true
	steps := slices.Sorted(maps.Keys(letters))
	states, kinds := map[string]bool{}, map[string]bool{}
	for queue := []string{""}; len(queue) > 0; queue = queue[1:] {
		for _, c := range steps {
			label := queue[0] + string(c)
			if label == "-" || len(label) > maxLabelLength {
				continue
			}
			begun := longestPrefix(label, begins)
			state := begun + " " + longestSuffix(label, ending) + " " + strconv.FormatBool(c == '-')
			if beginning[label] {
				state += " " + label
			}
			if states[state] {
				continue
			}
			states[state] = true
			queue = append(queue, label)
			kind := begun + " " + longestSuffix(label, ends)
			if exact[label] {
				kind += " " + label
			}
			if !kinds[kind] && checkLabel(label) == "" {
				kinds[kind] = true
				labels = append(labels, label)
			}
		}
	}
	return labels
}

func longestPrefix(text string, of map[string]bool) string {
	for n := len(text); n > 0; n-- {
		if of[text[:n]] {
			return text[:n]
		}
	}
	return ""
}

func longestSuffix(text string, of map[string]bool) string {
	for i := range len(text) {
		if of[text[i:]] {
			return text[i:]
		}
	}
	return ""
}

// pathKinds returns one path of each kind that the lines tell apart, of those of p. One of the paths can be read in two
// ways. If no comparisons are left, the paths are not all.
func (g *ground) pathKinds(p *placed, about []*placed) []string {
	all := slices.Clone(p.paths)
	for _, m := range about {
		for _, path := range m.paths {
			if !slices.ContainsFunc(all, func(other PathPattern) bool { return other.text == path.text && other.folds == path.folds }) {
				all = append(all, path)
			}
		}
	}
	k := pathWalk{patterns: all, own: len(p.paths), segments: map[string][]string{}, left: &g.left}
	return append(k.walk(), "//")
}

// A spot is how far one of several patterns has matched.
type spot struct{ pattern, at int }

func (s spot) compare(o spot) int {
	if s.pattern != o.pattern {
		return s.pattern - o.pattern
	}
	return s.at - o.at
}

// keyOf sorts spots and returns a text for them.
func keyOf(spots []spot) ([]spot, string) {
	slices.SortFunc(spots, spot.compare)
	spots = slices.Compact(spots)
	var key strings.Builder
	for _, s := range spots {
		fmt.Fprintf(&key, "%d.%d ", s.pattern, s.at)
	}
	return spots, key.String()
}

// A pathWalk goes through the states in which path patterns can be after some segments.
type pathWalk struct {
	patterns []PathPattern
	own      int // the first patterns, of which a path has to match one; 0 for no matter which
	segments map[string][]string
	left     *int // comparisons
}

func (w *pathWalk) walk() (paths []string) {
	type state struct {
		spots []spot
		path  string
	}
	first := state{}
	for i := range w.patterns {
		first.spots = append(first.spots, w.reached(spot{i, 0})...)
	}
	seen, kinds := map[string]bool{}, map[string]bool{}
	for queue := []state{first}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		for _, segment := range w.segmentKinds(from.spots) {
			if *w.left -= 1 + 4*len(from.spots); *w.left < 0 {
				return nil
			}
			to, key := keyOf(w.after(from.spots, segment))
			if w.own > 0 && (len(to) == 0 || to[0].pattern >= w.own) {
				continue
			}
			path := from.path + "/" + segment
			if matched := w.matched(to); !kinds[matched] {
				kinds[matched] = true
				paths = append(paths, path)
			}
			if segment != "" && !seen[key] {
				seen[key] = true
				queue = append(queue, state{to, path})
			}
		}
	}
	return paths
}

// reached returns s, and where it leads without a segment.
func (w *pathWalk) reached(s spot) []spot {
	all := []spot{s}
	for segments := w.patterns[s.pattern].segments; s.at < len(segments) && segments[s.at] == anySegments; all = append(all, s) {
		s.at++
	}
	return all
}

func (w *pathWalk) after(spots []spot, segment string) (all []spot) {
	for _, s := range spots {
		segments := w.patterns[s.pattern].segments
		switch {
		case s.at == len(segments):
		case segments[s.at] == anySegments:
			all = append(all, w.reached(s)...)
		case w.glob(s).match(segment):
			all = append(all, w.reached(spot{s.pattern, s.at + 1})...)
		}
	}
	return all
}

// matched names the patterns that have matched a whole path.
func (w *pathWalk) matched(spots []spot) string {
	spots = slices.DeleteFunc(slices.Clone(spots), func(s spot) bool { return s.at < len(w.patterns[s.pattern].segments) })
	_, key := keyOf(spots)
	return key
}

// segmentKinds returns one segment of each kind that the patterns at spots tell apart, and the empty one.
func (w *pathWalk) segmentKinds(spots []spot) []string {
	var globs []glob
	for _, s := range spots {
		if segments := w.patterns[s.pattern].segments; s.at < len(segments) && segments[s.at] != anySegments {
			globs = append(globs, w.glob(s))
		}
	}
	slices.SortFunc(globs, func(a, b glob) int { return cmp.Or(strings.Compare(a.text, b.text), compareBool(a.folds, b.folds)) })
	globs = slices.Compact(globs)
	key := fmt.Sprint(globs)
	if all, found := w.segments[key]; found {
		return all
	}
	all := append(w.apart(globs), "")
	w.segments[key] = all
	return all
}

// A glob is one segment of a pattern.
type glob struct {
	text  string
	folds bool
}

func (w *pathWalk) glob(s spot) glob {
	p := &w.patterns[s.pattern]
	return glob{p.segments[s.at], p.folds}
}

func (g glob) match(segment string) bool {
	if g.folds {
		segment = foldSegment(segment)
	}
	return matchSegment(g.text, segment)
}

// takes reports whether symbol is token, which is one of the glob's and no star.
func (g glob) takes(token, symbol string) bool {
	return token == symbol || g.folds && token == foldSymbol(symbol)
}

// apart goes through the states in which segment patterns can be after some symbols: a byte, or the escapes of one
// character.
func (w *pathWalk) apart(globs []glob) (all []string) {
	tokens := make([][]string, len(globs))
	for i, g := range globs {
		tokens[i] = symbolsOf(g.text)
	}
	reached := func(s spot) []spot {
		to := []spot{s}
		for ; s.at < len(tokens[s.pattern]) && tokens[s.pattern][s.at] == "*"; to = append(to, s) {
			s.at++
		}
		return to
	}
	type state struct {
		spots []spot
		text  string
	}
	first := state{}
	for i := range globs {
		first.spots = append(first.spots, reached(spot{i, 0})...)
	}
	seen, kinds := map[string]bool{}, map[string]bool{}
	for queue := []state{first}; len(queue) > 0; queue = queue[1:] {
		from := queue[0]
		var symbols []string
		for _, s := range from.spots {
			if s.at < len(tokens[s.pattern]) && tokens[s.pattern][s.at] != "*" {
				if token := tokens[s.pattern][s.at]; globs[s.pattern].folds {
					symbols = append(symbols, casesOf(token)...)
				} else {
					symbols = append(symbols, token)
				}
			}
		}
		slices.Sort(symbols)
		symbols = append(slices.Compact(symbols), freshSymbol(symbols))
		for _, symbol := range symbols {
			if *w.left -= 1 + 4*len(from.spots); *w.left < 0 {
				return nil
			}
			var to []spot
			for _, s := range from.spots {
				switch {
				case s.at == len(tokens[s.pattern]):
				case tokens[s.pattern][s.at] == "*":
					to = append(to, reached(s)...)
				case globs[s.pattern].takes(tokens[s.pattern][s.at], symbol):
					to = append(to, reached(spot{s.pattern, s.at + 1})...)
				}
			}
			to, key := keyOf(to)
			text := from.text + symbol
			key += dots(text)
			if seen[key] {
				continue
			}
			seen[key] = true
			queue = append(queue, state{to, text})
			_, kind := keyOf(slices.DeleteFunc(slices.Clone(to), func(s spot) bool { return s.at < len(tokens[s.pattern]) }))
			if !kinds[kind] && canonicalSegment(text, true) == nil {
				kinds[kind] = true
				all = append(all, text)
			}
		}
	}
	return all
}

// dots tells apart the texts of dots and spaces from which others than dot segments may still come.
func dots(text string) string {
	switch plain := strings.Trim(text, "."); {
	case plain == "":
		return text[:min(len(text), 3)]
	case strings.Trim(strings.ReplaceAll(text, "%20", ""), ".") == "":
		return "%20"
	}
	return ""
}

// symbolsOf splits a segment pattern into stars, bytes and the escapes of one character.
func symbolsOf(glob string) (all []string) {
	for len(glob) > 0 {
		n := 1
		if len(glob) > 2 && glob[0] == '%' {
			n = 3
			lead := strings.IndexByte(upperHex, glob[1]) // 0xC and more: escapes that belong together follow
			for more := map[int]int{0xC: 1, 0xD: 1, 0xE: 2, 0xF: 3}[lead]; more > 0; more-- {
				n += 3
			}
		}
		n = min(n, len(glob)) // of a path that is not canonical
		all, glob = append(all, glob[:n]), glob[n:]
	}
	return all
}

// freshSymbol returns a symbol that is none of some.
func freshSymbol(some []string) string {
	for c := byte('a'); c <= 'z'; c++ {
		if !slices.Contains(some, string(c)) {
			return string(c)
		}
	}
	for c := byte('A'); c <= 'Z'; c++ {
		if !slices.Contains(some, string(c)) {
			return string(c)
		}
	}
	return "%E2%98%83"
}
