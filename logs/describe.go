package logs

import (
	"cmp"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
)

// Host returns the host of the destination, or the name of a DNS question.
func Host(r *record.Record) string {
	switch {
	case r.Dst != nil && r.Dst.Host != "":
		return r.Dst.Host
	case r.DNS != nil:
		return r.DNS.Name
	default:
		return ""
	}
}

// Port returns the port of the destination, or "".
func Port(r *record.Record) string {
	if r.Dst == nil {
		return ""
	}
	return strconv.Itoa(int(r.Dst.Port))
}

// Destination returns the host, with its port if there is one.
func Destination(r *record.Record) string { return string(appendDestination(nil, r)) }

func appendDestination(b []byte, r *record.Record) []byte {
	switch {
	case r.Dst != nil && strings.Contains(r.Dst.Host, ":"):
		b = append(append(append(b, '['), r.Dst.Host...), ']', ':')
	case r.Dst != nil && r.Dst.Port != 0:
		b = append(append(b, r.Dst.Host...), ':')
	default:
		return append(b, Host(r)...)
	}
	return strconv.AppendUint(b, uint64(r.Dst.Port), 10)
}

// What returns the HTTP method, "dns" and the type of a DNS question, "container" and the name of a refused container, or else the
// via. If the client only claimed the host, What adds the address that it asked for.
func What(r *record.Record) string { return string(appendWhat(nil, r)) }

func appendWhat(b []byte, r *record.Record) []byte {
	b = appendMethod(b, r)
	if r.Dst != nil && r.Dst.Asked != "" {
		b = append(append(b, " at "...), r.Dst.Asked...)
	}
	return b
}

func appendMethod(b []byte, r *record.Record) []byte {
	switch {
	case r.HTTP != nil && r.HTTP.Method != "":
		return append(b, r.HTTP.Method...)
	case r.DNS != nil && r.DNS.Type != "":
		return append(append(b, "dns "...), r.DNS.Type...)
	case r.Container != nil && r.Decision != nil && r.Decision.Class == string(policy.ContainerRefused):
		return append(append(b, "container "...), cmp.Or(r.Container.Name, r.Container.ID)...)
	default:
		return append(b, r.Via...)
	}
}

// Who returns the sandbox and, if known, the program in it.
func Who(r *record.Record) string { return string(appendWho(nil, r)) }

func appendWho(b []byte, r *record.Record) []byte {
	program := Process(r)
	switch {
	case program == "":
		return append(b, r.Sandbox...)
	case r.Sandbox == "" || r.Sandbox == "default":
		return append(b, program...)
	default:
		return append(append(append(b, r.Sandbox...), '/'), program...)
	}
}

// Why returns the class of a denial or the rule that allowed. A denial by a named rule or for a class of
// address includes that detail in parentheses.
func Why(r *record.Record) string { return string(appendWhy(nil, r)) }

func appendWhy(b []byte, r *record.Record) []byte {
	d := r.Decision
	detail := ""
	switch {
	case d == nil:
		return b
	case d.Class == "":
		return append(b, d.Rule...)
	case r.Dst != nil && r.Dst.Class != "":
		detail = r.Dst.Class
	case d.Layer != "builtin" && d.Rule != "" && d.Rule != "default":
		detail = d.Rule
	default:
		return append(b, d.Class...)
	}
	return append(append(append(append(b, d.Class...), " ("...), detail...), ')')
}

// IsLookup reports whether r records a name lookup that egressd made for a flow. The flow's own record
// holds the decision.
func IsLookup(r *record.Record) bool {
	return r.Kind == record.KindDNS && r.Via != string(policy.ViaDNS) && r.DNS != nil
}

// RefusedHost returns the host that r denied because no rule mentions it, as a pattern. The pattern has a
// port if a bare host would not cover it. RefusedHost returns "" for other denials and for destinations
// that are not public.
func RefusedHost(r *record.Record) string {
	if r.Decision == nil || r.Decision.Class != string(policy.DefaultDeny) || r.Dst != nil && r.Dst.Class != "" {
		return ""
	}
	host := Host(r)
	if _, _, err := policy.ParseHost(host); err != nil {
		return ""
	}
	if port := Port(r); port != "" && port != "80" && port != "443" {
		host = Destination(r)
	}
	pattern, err := policy.ParsePattern(host)
	if err != nil || policy.InSpecialSpace(pattern) {
		return ""
	}
	return host
}

// Opening returns what an allow has to open for what r denied: its destination, and its method and path if they are
// known. It reports false if a rule cannot name just that, or if [RefusedHost] returns "".
func Opening(r *record.Record) (policy.Opening, bool) {
	if RefusedHost(r) == "" {
		return policy.Opening{}, false
	}
	pattern, err := policy.ParsePattern(Destination(r))
	o := policy.Opening{Pattern: pattern}
	if r.HTTP != nil {
		o.Method, o.Path = r.HTTP.Method, r.HTTP.Path
	}
	return o, err == nil && namesOne(r)
}

// namesOne reports whether a rule can name the request of r, if it was read, and no other.
func namesOne(r *record.Record) bool {
	return r.HTTP == nil || !r.HTTP.PathCut && policy.NamesOne(r.HTTP.Method, r.HTTP.Path)
}

// Allowable returns the result of [RefusedHost] if a line in the policy would let r pass and nothing else, else "". It
// returns "" for a sandbox whose own Rego allows too little: no line helps there. It returns "" for a shared id: the log
// cannot tell which of several requests was meant.
func Allowable(r *record.Record) string {
	if r.Flow == "" || r.Shared || r.Decision == nil || r.Decision.Layer == string(policy.PerSandbox) && r.Decision.Rule != "default" {
		return ""
	}
	host := RefusedHost(r)
	if !namesOne(r) || policy.LooksLikeData(host) {
		return ""
	}
	return host
}

// interpreters run programs written by others, so that their own name says little. A version number may
// follow the name.
var interpreters = []string{"node", "python", "ruby", "perl", "php", "bun", "deno"}

// Process returns the name of the program that made the record's request. It is the name of the
// executable. For an interpreter it is argv[0], such as "npm" or "python3", if that is a plain name.
func Process(r *record.Record) string {
	exe := Exe(r)
	if !isInterpreter(exe) || len(r.Process.Argv) == 0 {
		return exe
	}
	title, _, _ := strings.Cut(strings.TrimSuffix(r.Process.Argv[0], "..."), " ")
	if name := filepath.Base(title); plainProgram(name) {
		return name
	}
	return exe
}

// Exe returns the file name of the executable, or "".
func Exe(r *record.Record) string {
	if r.Process == nil || r.Process.Exe == "" {
		return ""
	}
	return filepath.Base(strings.TrimSuffix(r.Process.Exe, " (deleted)"))
}

func isInterpreter(exe string) bool {
	for _, name := range interpreters {
		if rest, ok := strings.CutPrefix(exe, name); ok && strings.Trim(rest, "0123456789.") == "" {
			return true
		}
	}
	return false
}

func plainProgram(name string) bool {
	if len(name) == 0 || len(name) > 32 {
		return false
	}
	return !strings.ContainsFunc(name, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-+", c)) || c == '/'
	}) && strings.Trim(name, "._-+") != ""
}
