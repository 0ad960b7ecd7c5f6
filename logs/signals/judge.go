package signals

import (
	"fmt"
	"slices"
)

// judge says what a site's program did with it that data leaves by.
func (f *Finder) judge(key siteKey, s *site) (int, []Signal) {
	return together([]Signal{s.canaries(), s.tells(), f.sends(key, s), s.publishes(), f.beats(key, s)})
}

func (s *site) canaries() Signal {
	if s.canary == nil {
		return Signal{}
	}
	return Signal{"canary", 100, fmt.Sprintf("the canary %s was in its %s (%s)", s.canary.Name, s.canary.Where, s.canary.Encoding)}
}

// namesFrom is what a token takes that is worth sending, and namesTo a key.
const namesFrom, namesTo = 128, 2048

// wordBytes is what a word or a counter can tell, which by themselves say little.
const wordBytes = 6

// tells is about names that carry data: they are many, long or random, and each is
// asked for about once, since a resolver remembers what it was told.
func (s *site) tells() Signal {
	n := s.names.count()
	asked := slices.Max(s.asked[:])
	if n < 8 || asked == 0 || s.told == 0 {
		return Signal{}
	}
	each := s.information / 8 / float64(s.told)
	bytes := each * n
	once := min(1, n/float64(asked))
	score := scaled(bytes*once*once, namesFrom, namesTo, 80)
	carried := s.carriers*2 > asked
	if each < wordBytes && !carried {
		score = int(float64(score) * each / wordBytes)
	}
	evidence := fmt.Sprintf("%.0f different names of up to %d characters, asked for %d times, can tell %.0f bytes", n, s.longestName, asked, bytes)
	if carried && score > 0 {
		score += 30
		evidence += "; of a type whose answers carry anything"
	}
	if s.overBudget > 0 {
		score = max(score, 60) + 10
		evidence += fmt.Sprintf("; %d were refused for that", s.overBudget)
	}
	return Signal{"names", min(score, 90), evidence}
}

// publishes is about places where others can fetch what is left.
func (s *site) publishes() Signal {
	if s.published == 0 {
		return Signal{"publish", min(10, int(s.looked)), fmt.Sprintf("%d requests to where anybody can publish", s.looked)}
	}
	score, what := 60+scaled(float64(s.publishedUp), 1<<10, 1<<20, 25), "sent something"
	if s.allowed == 0 {
		score, what = 55, "tried to send something"
	}
	return Signal{"publish", score, fmt.Sprintf("%s %d times, %s, to where others can fetch it", what, s.published, size(s.publishedUp))}
}
