package ui

import (
	"bytes"
	"os"
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/record"
)

// A ruleText is the rule that decided, where it stands today.
type ruleText struct {
	File    string
	Lines   []sourceLine
	Changed bool // another policy decided
}

type sourceLine struct {
	Number int
	Text   string
	Here   bool
}

const (
	linesAround   = 2
	largestPolicy = 1 << 20
)

// ruleOf returns the rule of a decision in the policy file, or nil if the page has no policy or the file no
// such rule.
func (s *Server) ruleOf(d *record.Decision) *ruleText {
	if !s.options.HasPolicy {
		return nil
	}
	cfg, err := config.Load(s.options.Config)
	if err != nil {
		return nil
	}
	all, err := cfg.Lines()
	if err != nil {
		return nil
	}
	for _, l := range all {
		if l.ID != d.Rule || string(l.Layer) != d.Layer || l.Place.File == "" {
			continue
		}
		found := excerpt(l.Place.File, l.Place.Line)
		if found == nil {
			return nil
		}
		if p, err := cfg.Compile(); err != nil || p.Digest() != d.Policy {
			found.Changed = true
		}
		return found
	}
	return nil
}

func excerpt(path string, at int) *ruleText {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > largestPolicy {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	found := &ruleText{File: path}
	for i, line := range bytes.Split(text, []byte("\n")) {
		if n := i + 1; n >= at-linesAround && n <= at+linesAround {
			found.Lines = append(found.Lines, sourceLine{n, strings.TrimRight(string(line), "\r"), n == at})
		}
	}
	return found
}
