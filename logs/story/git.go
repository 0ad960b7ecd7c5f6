package story

import "strings"

// Git says what was asked of a git server: the operation and the repository, and then each ref of a push. It returns nothing for a
// request that no rule for git has read.
func (s *Story) Git() (all []string) {
	for _, r := range s.Records {
		if r.Git == nil {
			continue
		}
		all = append(all, r.Git.Op+", "+r.Git.Repo)
		for _, command := range r.Git.Refs {
			all = append(all, gitCommand(command))
		}
		return all
	}
	return nil
}

// gitCommand says what a command of a push does with a ref. The object ID of no object is zeros.
func gitCommand(line string) string {
	parts := strings.SplitN(line, " ", 3)
	if len(parts) < 3 {
		return line
	}
	was, is, ref := strings.Trim(parts[0], "0") != "", strings.Trim(parts[1], "0") != "", parts[2]
	switch {
	case !is:
		return "delete " + ref + ", which is " + parts[0]
	case !was:
		return "create " + ref + " at " + parts[1]
	default:
		return "move " + ref + " from " + parts[0] + " to " + parts[1]
	}
}
