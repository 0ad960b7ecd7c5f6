package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// idleOf returns "ID never decides by ID ID" or "ID repeats ID" for each rule that changes nothing. A rule is written
// "allow HOST[:PORT] [METHOD,…] [PATH,…] [?NAME=VALUE] [NAME:VALUE] [fold] [only]".
func idleOf(t *testing.T, rules ...string) string {
	t.Helper()
	var l Lists
	for i, text := range rules {
		words := strings.Fields(text)
		p, err := ParsePattern(words[1])
		if err != nil {
			t.Fatal(err)
		}
		r := Rule{ID: fmt.Sprintf("%d[]", i), Pattern: p, At: Position{Line: i + 1}}
		for _, word := range words[2:] {
			name, value, isField := strings.Cut(strings.TrimPrefix(word, "?"), ":")
			switch parameter, of, isQuery := strings.Cut(name, "="); {
			case word == "fold":
				r.PathsFold = true
				continue
			case word == "only":
				r.QueryOnly = true
				continue
			case isQuery && word[0] == '?':
				r.Query = append(r.Query, FieldRule{parameter, strings.Split(of, "|")})
				continue
			case isField && word[0] != '/':
				r.Headers = append(r.Headers, FieldRule{name, strings.Split(value, "|")})
				continue
			}
			for part := range strings.SplitSeq(word, ",") {
				if !strings.HasPrefix(part, "/") {
					r.Methods = append(r.Methods, part)
				} else if path, err := ParsePathPattern(part); err != nil {
					t.Fatal(err)
				} else {
					r.Paths = append(r.Paths, path)
				}
			}
		}
		into := map[string]*[]Rule{"allow": &l.Allow, "deny": &l.Deny, "ask": &l.Ask}[words[0]]
		*into = append(*into, r)
	}
	var said []string
	for _, idle := range l.Idle() {
		what := "repeats"
		if idle.Hidden {
			what = "is hidden by"
		}
		var by []string
		for _, r := range idle.By {
			by = append(by, strings.TrimSuffix(r.ID, "[]"))
		}
		said = append(said, strings.TrimSuffix(idle.Rule.ID, "[]")+" "+what+" "+strings.Join(by, " "))
	}
	return strings.Join(said, "; ")
}

func each(letters, format string) (all []string) {
	for _, c := range letters {
		all = append(all, fmt.Sprintf(format, string(c)))
	}
	return all
}

func TestWhatHidesALine(t *testing.T) {
	const first = "abcdefghijklmnopqrstuvwxyz0123456789_"
	for _, row := range []struct {
		says  string
		rules []string
		want  string
	}{
		{"a deny of the host, whatever the port of the allow", []string{"allow git.acme.test:443", "deny git.acme.test"}, "0 is hidden by 1"},
		{"an ask, and a deny of it", []string{"ask a.test", "deny a.test:*"}, "0 is hidden by 1"},
		{"both ports of an allow, one by one", []string{"allow a.test", "deny a.test:443", "ask a.test:80"}, "0 is hidden by 1 2"},
		{"one of them", []string{"allow a.test", "deny a.test:443"}, ""},
		{"a wildcard is not closer", []string{"allow a.test", "deny *.test"}, ""},
		{"a deny that an allow names more closely", []string{"deny *.a.test", "allow b.a.test"}, ""},
		{"all halves of a prefix", []string{"deny 93.184.0.0/16", "allow 93.184.0.0/17:*", "allow 93.184.128.0/18:*", "allow 93.184.192.0/18:*"}, "0 is hidden by 1 2 3"},
		{"all halves at two ports", []string{"deny 93.184.0.0/16", "allow 93.184.0.0/17", "allow 93.184.128.0/17"}, ""},
		{"all but one address", []string{"deny 93.184.0.0/30", "allow 93.184.0.0:*", "allow 93.184.0.1:*", "allow 93.184.0.3:*"}, ""},
		{"of IPv6", []string{"deny [2606::/32]:443", "allow 2606::/33", "allow 2606:0:8000::/33"}, "0 is hidden by 1 2"},
		{"every first letter of a label", append([]string{"deny *{1}.a.test:443"}, each(first, "allow %s*.a.test")...), "0 is hidden by " + strings.Trim(fmt.Sprint(numbers(1, len(first))), "[]")},
		{"every first letter but one", append([]string{"deny *{1}.a.test:443"}, each(first[1:], "allow %s*.a.test")...), ""},
		{"the beginning and the end of a label", []string{"allow a*.b.test", "deny *b.b.test"}, ""},
		{"all paths below", []string{"allow a.test GET /x/y", "deny a.test /x/**"}, "0 is hidden by 1"},
		{"a path beside", []string{"allow a.test GET /x/y,/z", "deny a.test /x/**"}, ""},
		{"all depths", []string{"allow a.test /x/**", "deny a.test /x,/x/*,/x/*/**"}, "0 is hidden by 1"},
		{"not the folder itself", []string{"allow a.test /x/**", "deny a.test /x/*/**"}, ""},
		{"ends of segments", []string{"allow a.test /*.tar.gz", "deny a.test /*.gz"}, "0 is hidden by 1"},
		{"the end of a segment and its beginning", []string{"allow a.test /a*", "deny a.test /*a"}, ""},
		{"dot segments are no paths", []string{"allow a.test /.*", "deny a.test /.*?*"[:len("deny a.test /.*")]}, "0 is hidden by 1"},
		{"escapes", []string{"allow a.test /%C3%A9*", "deny a.test /%C3%A9,/%C3%A9?*"[:len("deny a.test /%C3%A9")]}, ""},
		{"case", []string{"allow a.test /Acme/x", "deny a.test /acme/** fold"}, "0 is hidden by 1"},
		{"case of an allow that folds", []string{"allow a.test /acme/x fold", "deny a.test /acme/x"}, ""},
		{"case of one that does not", []string{"allow a.test /ACME/x", "deny a.test /acme/x"}, ""},
		{"both cases of a letter", []string{"allow a.test /x fold", "deny a.test /x,/X"}, "0 is hidden by 1"},
		{"a Kelvin sign", []string{"allow a.test /%E2%84%AA", "deny a.test /k fold"}, "0 is hidden by 1"},
		{"case of a letter with an accent", []string{"allow a.test /%C3%A9*", "deny a.test /%C3%89* fold"}, "0 is hidden by 1"},
		{"the same header", []string{"allow a.test x-a:1", "deny a.test x-a:1"}, "0 is hidden by 1"},
		{"more headers than the deny", []string{"allow a.test x-a:1 x-b:1", "deny a.test x-a:1"}, "0 is hidden by 1"},
		{"another value", []string{"allow a.test x-a:1", "deny a.test x-a:1|2"}, ""},
		{"fewer headers than the deny", []string{"allow a.test x-a:1", "deny a.test x-a:1 x-b:1"}, ""},
		{"a query of a path", []string{"allow a.test /x ?s=1", "deny a.test ?s=1"}, "0 is hidden by 1"},
		{"a query and no other", []string{"allow a.test ?s=1 only", "deny a.test ?s=1"}, "0 is hidden by 1"},
		{"a query and others", []string{"allow a.test ?s=1", "deny a.test ?s=1 only"}, ""},
		{"a header twice", []string{"allow a.test x-a:1", "allow a.test x-a:1"}, "0 repeats 1; 1 repeats 0"},
		{"methods", []string{"allow a.test GET", "deny a.test GET"}, "0 is hidden by 1"},
		{"HEAD comes with GET", []string{"allow a.test HEAD", "ask a.test GET"}, "0 is hidden by 1"},
		{"GET does not come with HEAD", []string{"allow a.test GET", "deny a.test HEAD"}, ""},
		{"a line twice", []string{"allow a.test", "allow a.test"}, "0 repeats 1; 1 repeats 0"},
		{"a narrower line", []string{"allow *.a.test", "allow b.a.test:443"}, "1 repeats 0"},
		{"a narrower line over a deny", []string{"allow *.test", "deny *.a.test", "allow b.a.test:443"}, ""},
		{"paths of a method", []string{"allow a.test GET", "allow a.test GET /x"}, "1 repeats 0"},
	} {
		if got := idleOf(t, row.rules...); got != row.want {
			t.Errorf("%s: %q, want %q", row.says, got, row.want)
		}
	}
}

func numbers(from, to int) (all []int) {
	for n := from; n <= to; n++ {
		all = append(all, n)
	}
	return all
}

// TestLongListsAreJudgedInTime has as many lines as a large file, and many lines for one host.
func TestLongListsAreJudgedInTime(t *testing.T) {
	hosts, requests := &Lists{}, &Lists{Deny: mustRules(t, "a.test:22")}
	for i := range 20_000 {
		hosts.Allow = append(hosts.Allow, mustRules(t, fmt.Sprintf("h%d.a.test", i))...)
		hosts.Deny = append(hosts.Deny, mustRules(t, fmt.Sprintf("h%d.a.test:22", i))...)
		hosts.Ask = append(hosts.Ask, mustRules(t, fmt.Sprintf("11.%d.%d.0/24", i/256, i%256))...)
	}
	hosts.Allow = append(hosts.Allow, mustRules(t, "*{1}.a.test", "h1*.a.test", "*7.a.test", "11.0.0.0/8")...)
	for i := range 1000 {
		r := mustRules(t, "a.test")[0]
		path, err := ParsePathPattern(fmt.Sprintf("/v1/%d/%d", i%40, i))
		if err != nil {
			t.Fatal(err)
		}
		r.Methods, r.Paths = []string{"GET"}, []PathPattern{path}
		requests.Allow = append(requests.Allow, r)
	}
	stars := &Lists{}
	for i := range 1000 {
		r := mustRules(t, "a.test")[0]
		path, err := ParsePathPattern(fmt.Sprintf("/*%d*/*%c*%c*/**/x*", i%30, 'a'+i%26, 'a'+i/26%26))
		if err != nil {
			t.Fatal(err)
		}
		r.Paths = []PathPattern{path}
		stars.Allow, stars.Ask = append(stars.Allow, r), append(stars.Ask, mustRules(t, "a.test:22")...)
		if stars.Ask[i].Paths = r.Paths; i%2 == 0 {
			stars.Ask[i].Pattern = r.Pattern.At(80)
		}
	}
	for says, l := range map[string]*Lists{"hosts": hosts, "requests": requests, "stars": stars} {
		begun := time.Now()
		hidden := len(l.Hidden())
		l.Idle()
		if took := time.Since(begun); hidden > 0 || took > time.Minute { // without a bound it has no end in an hour
			t.Errorf("%s: %d hidden, after %s", says, hidden, took)
		} else {
			t.Logf("%s: %s", says, took)
		}
	}
}
