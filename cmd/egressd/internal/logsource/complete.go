package logsource

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs"
	"github.com/spf13/cobra"
)

// recentBytes bounds what completion reads: who presses a key waits for it.
const recentBytes = 2 << 20

// recent calls do with the records that stand in the last bytes of the log. It
// passes over what it cannot read, since completion has nobody to tell.
func (s *Source) recent(do func(*egress.Record)) {
	dir, err := s.Directory()
	if err != nil {
		return
	}
	paths, err := audit.Segments(dir)
	if err != nil {
		return
	}
	left := int64(recentBytes)
	for _, path := range slices.Backward(paths) {
		text := tailOf(path, left)
		for line := range bytes.Lines(text) {
			if r, err := logs.Decode(bytes.TrimSuffix(line, []byte("\n"))); err == nil {
				do(r)
			}
		}
		if left -= int64(len(text)); left <= 0 {
			return
		}
	}
}

// tailOf returns the whole lines in the last bytes of a file.
func tailOf(path string, most int64) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would wait for a writer
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	from := max(0, info.Size()-most)
	text := make([]byte, info.Size()-from)
	if n, err := f.ReadAt(text, from); err != nil && err != io.EOF {
		return nil
	} else if text = text[:n]; from > 0 {
		_, text, _ = bytes.Cut(text, []byte("\n"))
	}
	return text
}

// CompleteFilters completes the keys of filters, and their values: those that are
// few, else what is in the log.
func (s *Source) CompleteFilters(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	sign := ""
	if strings.HasPrefix(word, "!") {
		sign, word = "!", word[1:]
	}
	key, value, found := strings.Cut(word, ":")
	var all []string
	if !found {
		for _, k := range logs.FilterKeys {
			all = append(all, sign+k+":")
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
	values := logs.FilterValues[key]
	switch {
	case values != nil:
	case key == "run":
		values = s.runs()
	default:
		values = s.values(key, value)
	}
	for _, v := range values {
		all = append(all, sign+key+":"+v)
	}
	return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}

// mostValues is how many values are offered.
const mostValues = 50

// values are those of a key that begin with a text, of recent records: those that
// were most, first. What a shell or a terminal could take for something else is
// left out.
func (s *Source) values(key, begin string) []string {
	field := logs.Field(key)
	if key == "flow" {
		field = func(r *egress.Record) string { return r.Flow }
	}
	if field == nil {
		return nil
	}
	var counts logs.Ranking
	s.recent(func(r *egress.Record) {
		if v := field(r); v != "" && strings.HasPrefix(v, begin) && harmless(v) {
			counts.Add(v, r)
		}
	})
	var values []string
	for _, e := range counts.Top(mostValues) {
		values = append(values, e.Value)
	}
	return values
}

// harmless reports whether s can stand on a command line as it is, and is no longer
// than a person reads.
func harmless(s string) bool {
	return len(s) <= 100 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789./_-:+@%") == ""
}

// runs are the ids of the last runs.
func (s *Source) runs() []string {
	dir, err := s.daemons()
	if err != nil {
		return nil
	}
	entries, err := os.ReadDir(config.RunsBeside(dir))
	if err != nil {
		return nil
	}
	all := []string{"last"}
	for _, e := range slices.Backward(entries) {
		if len(all) < mostValues {
			all = append(all, e.Name())
		}
	}
	return all
}

// CompleteIDs offers the newest ids of the log.
func (s *Source) CompleteIDs(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	log, err := s.Open()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer log.Close()
	const most = 20
	var ids []string
	_ = log.Each(func(_ string, r *egress.Record) error { // completion has nobody to tell
		if strings.HasPrefix(r.Flow, strings.ToUpper(word)) && r.Flow != "" && r.Kind != egress.KindClose {
			ids = append(ids, r.Flow+"\t"+printable.Text(logs.Destination(r)+" "+logs.Why(r)))
			ids = ids[max(0, len(ids)-most):]
		}
		return nil
	})
	return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
}
