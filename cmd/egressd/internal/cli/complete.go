package cli

import (
	"strings"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/source"
	"github.com/egressd/egressd/record"
	"github.com/spf13/cobra"
)

// CompleteSandboxes completes the names of the sandboxes that the policy file at *path lists.
func CompleteSandboxes(path *string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		cfg, err := config.Load(*path)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, s := range cfg.File.Sandboxes {
			names = append(names, s.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteFilters completes the keys of filters. It completes values from a fixed list if the key has one,
// else from the recent records of the log.
func CompleteFilters(s *source.Source) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
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
		if values == nil {
			values = s.Values(key, value)
		}
		for _, v := range values {
			all = append(all, sign+key+":"+v)
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// completeRuns completes the ids of runs, the newest first.
func completeRuns(s *source.Source) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		const most = 50
		all := []string{"last"}
		runs, _ := s.ListRuns(most) // completion cannot show an error
		for i := range runs {
			all = append(all, runs[i].ID+"\t"+printable.Text(strings.TrimSpace(runs[i].Sandbox+" "+runs[i].Program)))
		}
		return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}

// CompleteIDs completes the first argument with the newest flow ids of the log.
func CompleteIDs(s *source.Source) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		log, err := s.Open()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer log.Close()
		const most = 20
		var ids []string
		_ = log.Each(func(_ string, r *record.Record) error { // completion cannot show an error
			if strings.HasPrefix(r.Flow, strings.ToUpper(word)) && r.Flow != "" && r.Kind != record.KindClose {
				ids = append(ids, r.Flow+"\t"+printable.Text(logs.Destination(r)+" "+logs.Why(r)))
				ids = ids[max(0, len(ids)-most):]
			}
			return nil
		})
		return ids, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	}
}
