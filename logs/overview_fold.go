package logs

import "strings"

// A matter is what one program wanted: to reach a host. The name server is asked for its addresses first.
type matter struct {
	sandbox, host string
	allowed       bool
}

func (g *Group) matter() matter { return matter{g.sandbox, g.host, g.Action == "allow"} }

// isQuestion reports whether the line counts questions for the addresses of one name, which come before a connection.
func (g *Group) isQuestion() bool {
	kind, found := strings.CutPrefix(g.What, "dns ")
	return found && !g.many && g.port == 0 && (kind == "A" || kind == "AAAA" || kind == "HTTPS" || kind == "SVCB")
}

// connected returns the hosts that have lines of connections and requests.
func (o *Overview) connected() map[matter]bool {
	hosts := map[matter]bool{}
	for _, g := range o.groups {
		if g.port != 0 && g.Count > 0 {
			hosts[g.matter()] = true
		}
	}
	return hosts
}

// foldQuestions leaves out the questions for names that were connected to, and makes one line of those for the addresses of
// one name. It does not change o.
func (o *Overview) foldQuestions(groups []*Group) (folded []*Group) {
	type question struct {
		matter
		who, why string
	}
	hosts, names := o.connected(), map[question]int{}
	for _, g := range groups {
		if !g.isQuestion() {
			folded = append(folded, g)
			continue
		}
		if hosts[g.matter()] {
			continue
		}
		q := question{g.matter(), g.Who, g.Why}
		i, known := names[q]
		if !known {
			names[q] = len(folded)
			folded = append(folded, g)
			continue
		}
		one := *folded[i]
		if one.What = "dns"; g.Last.After(one.Last) {
			one.Last, one.Flow, one.Allow = g.Last, g.Flow, g.Allow
		}
		one.Count = max(one.Count, g.Count)
		folded[i] = &one
	}
	return folded
}
