package exchange

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/proxy/answer"
	"github.com/egressd/egressd/record"
)

// Bounds of inquiries.
const (
	inquiryBody  = 8 << 10 // bytes
	accessWords  = 500     // bytes
	longestWait  = 60 * time.Second
	inquiryGrace = 10 * time.Second // to write an answer after a wait
)

// isInquiry reports whether a request is for egressd itself. Inside an inspected tunnel none is, and a request that names
// another server than its connection leads to is refused like any other.
func (v *h1Conn) isInquiry(x *h1Exchange) bool {
	return v.tunnel == nil && x.Authority == "" && policy.IsInquiry(&x.Destination) && v.Forwarder.Gate.Inquiries.On()
}

// An inquiry is a request to egressd itself.
type inquiry struct {
	*h1Conn
	x    *h1Exchange
	from *egress.Inquirer
}

// An inquiryReply is the answer to an inquiry, as text and as JSON.
type inquiryReply struct {
	status int
	text   string
	value  any
	fields http1.Fields
}

// inquire answers a request to egressd itself. The connection ends with the answer. Nothing leaves, so only questions to a
// person have a record.
func (v *h1Conn) inquire(x *h1Exchange) {
	ctx := v.Context()
	defer ctx.Release()
	from, err := v.Forwarder.Gate.Inquiries.Of(ctx, v.Peer, v.Via)
	if err != nil {
		x.refuse(AsRefusal(err))
		return
	}
	who := from.Sandbox()
	if refusal := v.Assign(who.Holder(), who.Name); refusal != nil {
		x.refuse(refusal)
		return
	}
	q := &inquiry{v, x, from}
	reply, err := q.reply(ctx)
	if refusal, ok := errors.AsType[*egress.Refusal](err); ok {
		x.refuse(refusal)
		return
	}
	if err != nil {
		reply = problemReply(429, err.Error(), "ask again in a minute")
		reply.fields = http1.Fields{{Name: "Retry-After", Value: "60"}}
	}
	WriteLast(v.Conn, q.render(&reply), LastMoment)
}

// reply answers. The error is [egress.ErrInquiresTooOften] or a [*egress.Refusal].
func (q *inquiry) reply(ctx context.Context) (inquiryReply, error) {
	if err := q.from.Take(); err != nil {
		return inquiryReply{}, err
	}
	fields := q.x.req.Fields
	if site := fields.Get("Sec-Fetch-Site"); fields.Has("Origin") || site != "" && site != "none" {
		return problemReply(403, "pages of other sites may not ask in the name of this sandbox", "ask with a program such as curl"), nil
	}
	path := strings.TrimSuffix(q.x.Target.Path, "/")
	switch reads := q.x.req.Method == "GET" || q.x.req.Method == "HEAD"; {
	case path == "/requests" && q.x.req.Method == "POST":
		return q.ask(ctx)
	case !reads:
		r := problemReply(405, "that is not a method to ask with", "GET "+policy.InquiryURL)
		r.fields = http1.Fields{{Name: "Allow", Value: "GET, HEAD"}}
		return r, nil
	}
	what, id, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	switch {
	case path == "":
		return q.overview(), nil
	case path == "/allowed":
		all := q.from.Allowances()
		return inquiryReply{200, allowedText(all), map[string]any{"sandbox": q.from.Sandbox().Name, "allowed": list(all)}, nil}, nil
	case path == "/denied":
		all := q.from.Denials()
		return inquiryReply{200, deniedText(all), map[string]any{"sandbox": q.from.Sandbox().Name, "denied": list(all)}, nil}, nil
	case what == "denied":
		return q.denied(strings.ToUpper(id)), nil
	case path == "/requests":
		all := q.from.Accesses()
		text := "Nothing is asked.\n"
		if len(all) > 0 {
			text = ""
		}
		for i := range all {
			text += accessText(&all[i])
		}
		return inquiryReply{200, text, map[string]any{"sandbox": q.from.Sandbox().Name, "requests": list(all)}, nil}, nil
	case what == "requests":
		return q.await(ctx, strings.ToUpper(id)), nil
	}
	return problemReply(404, "there is nothing at that path", "GET "+policy.InquiryURL), nil
}

// list keeps an empty list from becoming null.
func list[T any](all []T) []T { return append([]T{}, all...) }

// problemReply is an answer that says what was wrong, and what to do.
func problemReply(status int, why, next string) inquiryReply {
	return inquiryReply{status, why + "\nTry: " + next + "\n", map[string]any{"error": why, "hint": next}, nil}
}

const inquiryHelp = `egressd decides what leaves this sandbox, and answers here. With "Accept: application/json" the answers are JSON.

  GET  ` + policy.InquiryURL + `allowed           what this sandbox may reach
  GET  ` + policy.InquiryURL + `denied            what it was denied lately
  GET  ` + policy.InquiryURL + `denied/ID         why ID was denied
  POST ` + policy.InquiryURL + `requests          ask a person for more
  GET  ` + policy.InquiryURL + `requests/ID       the answer; with ?wait=60 it waits up to 60 s for one

` + inquiryExample + `
A person sees the words under "reason" marked as yours. "method" and "path" may be left out. Do not look for another route.
`

const inquiryExample = `  curl ` + policy.InquiryURL + `requests -d '{"host":"example.com:443","method":"GET","path":"/file","reason":"why it is needed"}'
`

func (q *inquiry) overview() inquiryReply {
	who, denials, allowed := q.from.Sandbox().Name, q.from.Denials(), q.from.Allowances()
	text := inquiryHelp + "\nSandbox " + who + " may reach:\n" + indent(allowedText(allowed)) + "\nIt was denied lately:\n" + indent(deniedText(denials))
	return inquiryReply{200, text, map[string]any{
		"sandbox": who, "allowed": list(allowed), "denied": list(denials), "requests": list(q.from.Accesses()),
		"ask": map[string]any{"method": "POST", "url": policy.InquiryURL + "requests", "body": accessRequest{Host: "example.com:443", Method: "GET", Path: "/file", Reason: "why it is needed"}},
	}, nil}
}

func indent(text string) string {
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

// allowancesShown is how many lines a text has; the JSON has all.
const allowancesShown = 200

func allowedText(all []egress.Allowance) string {
	if len(all) == 0 {
		return "nothing\n"
	}
	var b strings.Builder
	for i, a := range all {
		if i == allowancesShown {
			fmt.Fprintf(&b, "and %d more, in the JSON\n", len(all)-i)
			break
		}
		fmt.Fprintf(&b, "%s (%s, rule %s)\n", printable.Text(a.What), a.Effect, printable.Text(a.Rule))
	}
	return b.String()
}

func deniedText(all []egress.Denial) string {
	if len(all) == 0 {
		return "nothing\n"
	}
	var b strings.Builder
	for i := range all {
		d := &all[i]
		fmt.Fprintf(&b, "%s %s %s %s", d.ID, d.Time.Format(time.RFC3339), d.Class, printable.Text(strings.TrimSpace(d.Method+" "+d.Path+" "+d.Destination)))
		if d.Times > 1 {
			fmt.Fprintf(&b, " (%d times)", d.Times)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// denied says why something was denied.
func (q *inquiry) denied(id string) inquiryReply {
	d, found := q.from.Denial(id)
	if !found {
		return problemReply(404, "this sandbox was denied nothing with that id, or too long ago", "GET "+policy.InquiryURL+"denied")
	}
	lines := []string{strings.TrimSuffix(deniedText([]egress.Denial{d}), "\n"), "Rule: " + d.Rule}
	if d.Reason != "" {
		lines = append(lines, "Reason: "+d.Reason)
	}
	if len(d.AllowedIf) > 0 {
		lines = append(lines, "Allowed if: "+strings.Join(d.AllowedIf, "; or "))
	}
	if d.Message != "" {
		lines = append(lines, "The operator says: "+d.Message)
	}
	for i := range lines {
		lines[i] = printable.Text(lines[i])
	}
	return inquiryReply{200, strings.Join(lines, "\n") + "\n", d, nil}
}

// An accessRequest is the body of a POST to /requests.
type accessRequest struct {
	Host   string `json:"host"` // a name or address with a port, 443 if it has none; or the URL
	Method string `json:"method,omitempty"`
	Path   string `json:"path,omitempty"`
	Reason string `json:"reason"`

	destination policy.Destination // of Host, once that is read
}

// ask asks a person.
func (q *inquiry) ask(ctx context.Context) (inquiryReply, error) {
	const next = "curl " + policy.InquiryURL + `requests -d '{"host":"example.com:443","reason":"why it is needed"}'`
	body, err := q.body()
	if err != nil {
		return problemReply(400, err.Error(), next), nil
	}
	r, opening, err := parseAccess(body)
	if err != nil {
		return problemReply(400, printable.Text(err.Error()), next), nil
	}
	if dst := r.destination; opening.Conditional() && dst.Port == 443 && !q.Forwarder.LooksInside() {
		a := egress.Access{What: opening.String(), State: egress.AccessRefused, Reason: "egressd looks into no TLS by the policy in force, so it cannot tell requests there apart; ask without method and path"}
		return inquiryReply{403, accessText(&a), a, nil}, nil
	}
	a, err := q.from.Ask(ctx, opening, r.Reason)
	if err != nil {
		return inquiryReply{}, err
	}
	reply := inquiryReply{200, accessText(&a), a, nil}
	switch {
	case a.State == egress.AccessRefused:
		reply.status = 403
	case a.ID != "":
		reply.status = 202
		reply.fields = http1.Fields{{Name: "Location", Value: policy.InquiryURL + "requests/" + a.ID}}
	}
	return reply, nil
}

// body reads the body of a request.
func (q *inquiry) body() ([]byte, error) {
	if q.x.Body == nil {
		return nil, errors.New("the request has no body")
	}
	if q.x.expects {
		if _, err := q.Conn.Write([]byte("HTTP/1.1 100 Continue\r\n\r\n")); err != nil {
			return nil, err
		}
	}
	body, err := io.ReadAll(io.LimitReader(q.x.Body, inquiryBody+1))
	switch {
	case err != nil:
		return nil, errors.New("the body of the request is not whole")
	case len(body) > inquiryBody:
		return nil, fmt.Errorf("the body has more than %d bytes", inquiryBody)
	}
	return body, nil
}

// parseAccess reads what a sandbox asks for: one host and port. A method and a path may narrow it to some requests there.
func parseAccess(body []byte) (r accessRequest, o policy.Opening, err error) {
	from := json.NewDecoder(bytes.NewReader(body))
	from.DisallowUnknownFields()
	if err := from.Decode(&r); err != nil || from.More() {
		return r, o, fmt.Errorf("the body is not one JSON object with host, method, path and reason (%v)", cmp.Or(err, errors.New("something stands behind it")))
	}
	switch {
	case strings.TrimSpace(r.Reason) == "":
		return r, o, errors.New("there is no reason, and a person reads it")
	case len(r.Reason) > accessWords:
		return r, o, fmt.Errorf("the reason has more than %d bytes", accessWords)
	}
	host, path, port := r.Host, r.Path, "443"
	for scheme, its := range map[string]string{"https://": "443", "http://": "80"} {
		if rest, is := strings.CutPrefix(host, scheme); is {
			var of string
			host, of, _ = strings.Cut(rest, "/")
			port = its
			if path == "" && of != "" {
				path = "/" + of
			}
		}
	}
	if strings.Contains(host, "*") {
		return r, o, errors.New("a pattern is not asked for: name one host")
	}
	if _, _, bare := policy.ParseHost(host); bare == nil {
		host += ":" + port
	}
	dst, err := policy.ParseDestination(host)
	if err != nil {
		return r, o, err
	}
	r.destination = dst
	if o.Pattern, err = policy.ParsePattern(dst.String()); err != nil {
		return r, o, err
	}
	o.Method, o.Path = strings.ToUpper(r.Method), path
	if len(o.Path) > record.MaxPath || len(o.Method) > record.MaxMethod {
		return r, o, errors.New("the path is too long to be shown to anybody")
	}
	return r, o, o.Check()
}

// await says what came of a question, and waits for the answer as long as the query says.
func (q *inquiry) await(ctx context.Context, text string) inquiryReply {
	terms, err := url.ParseQuery(q.x.Target.Query)
	wait, bad := time.Duration(0), err != nil
	if text := terms.Get("wait"); text != "" {
		seconds, err := strconv.Atoi(text)
		wait, bad = time.Duration(seconds)*time.Second, bad || err != nil || seconds < 0
	}
	if bad || wait > longestWait {
		return problemReply(400, "wait is a number of seconds up to 60", "GET "+policy.InquiryURL+"requests/ID?wait=60")
	}
	q.Deadline(wait + inquiryGrace)
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	id, ok := record.ParseID(text)
	a, found := q.from.Access(ctx, id)
	if !ok || !found {
		return problemReply(404, "this sandbox asked nothing with that id, or the time of the answer is over", "GET "+policy.InquiryURL+"requests")
	}
	return inquiryReply{200, accessText(&a), a, nil}
}

// accessText says what came of what a sandbox asked for.
func accessText(a *egress.Access) string {
	text := printable.Text(a.What) + ": " + a.State
	if a.ID != "" {
		text = a.ID + " " + text
	}
	if a.Until != nil {
		text += " until " + a.Until.Format(time.RFC3339)
	}
	switch a.State {
	case "pending":
		text += "; a person is asked. For the answer: curl '" + policy.InquiryURL + "requests/" + a.ID + "?wait=60'"
	case "approved", egress.AccessAllowed:
		text += "; send the request now"
	case egress.AccessRefused:
		text += "; nobody is asked: " + printable.Text(a.Reason)
	}
	return text + "\n"
}

// render writes the whole response.
func (q *inquiry) render(r *inquiryReply) []byte {
	kind, body := "text/plain; charset=utf-8", []byte(r.text)
	if f := q.x.req.Fields; strings.Contains(f.Get("Accept"), "json") || strings.Contains(f.Get("Content-Type"), "application/json") {
		if text, err := json.Marshal(r.value); err == nil {
			kind, body = "application/json", append(text, '\n')
		}
	}
	fields := append(r.fields,
		http1.Field{Name: "Content-Type", Value: kind},
		http1.Field{Name: "Content-Length", Value: strconv.Itoa(len(body))},
		http1.Field{Name: "X-Content-Type-Options", Value: "nosniff"},
		http1.Field{Name: "Cache-Control", Value: "no-store"},
		http1.Field{Name: "Connection", Value: "close"})
	out := http1.AppendResponse(nil, r.status, answer.StatusText(r.status), fields)
	if q.x.req.Method == "HEAD" {
		return out
	}
	return append(out, body...)
}
