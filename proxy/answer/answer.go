// Package answer renders refusals for the program that asked: as responses of HTTP with a page, JSON or text, as replies of SOCKS,
// and in the words of other protocols. It decides nothing and writes to no connection.
//
//	reply := answer.HTTP(refusal, answer.RecipientOf(request.Fields))
package answer

import (
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"net/http"
	"strconv"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/http1"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
	"github.com/egressd/egressd/policy"
)

// Replies of RFC 1928 §6, and the method that means none.
const (
	SOCKSOK         = 0
	SOCKSFailure    = 1
	SOCKSRefused    = 2
	SOCKSNetwork    = 3
	SOCKSHost       = 4
	SOCKSConnection = 5
	SOCKSCommand    = 7
	SOCKSAddress    = 8
	SOCKSNoMethod   = 0xff
)

// An Answer is how one class of refusal looks in each protocol. A rule that denies is 403, a budget or a limit 429;
// 5xx is the network or egressd itself.
type Answer struct {
	Status int
	retry  bool
	SOCKS  byte // RFC 1928 §6
}

var answers = map[policy.Class]Answer{
	policy.DefaultDeny:      {403, false, SOCKSRefused},
	policy.RuleDeny:         {403, false, SOCKSRefused},
	policy.MethodDenied:     {403, false, SOCKSRefused},
	policy.PathDenied:       {403, false, SOCKSRefused},
	policy.HeaderDenied:     {403, false, SOCKSRefused},
	policy.QueryDenied:      {403, false, SOCKSRefused},
	policy.GitDenied:        {403, false, SOCKSRefused},
	policy.BodyDenied:       {403, false, SOCKSRefused},
	policy.MCPDenied:        {403, false, SOCKSRefused},
	policy.ModelDenied:      {403, false, SOCKSRefused},
	policy.GraphQLDenied:    {403, false, SOCKSRefused},
	policy.BodyTooLarge:     {413, false, SOCKSRefused},
	policy.AddressDenied:    {403, false, SOCKSRefused},
	policy.NameMismatch:     {403, false, SOCKSRefused},
	policy.NoServerName:     {403, false, SOCKSRefused},
	policy.NotTLS:           {403, false, SOCKSRefused},
	policy.ECHRefused:       {403, false, SOCKSRefused},
	policy.AskPending:       {403, true, SOCKSRefused},
	policy.AskTimeout:       {403, true, SOCKSRefused},
	policy.AskRejected:      {403, false, SOCKSRefused},
	policy.PolicyNotLoaded:  {403, false, SOCKSRefused},
	policy.PolicyError:      {403, false, SOCKSRefused},
	policy.MalformedRequest: {400, false, SOCKSFailure},
	policy.MalformedHost:    {400, false, SOCKSAddress},
	policy.UnknownSandbox:   {407, false, SOCKSNoMethod},
	policy.TooManyFlows:     {429, true, SOCKSFailure},
	policy.ByteBudget:       {429, true, SOCKSFailure},
	policy.AuditUnavailable: {503, true, SOCKSFailure},
	policy.DNSTypeDenied:    {403, false, SOCKSRefused},
	policy.DNSBudget:        {429, true, SOCKSFailure},
	policy.UDPDenied:        {403, false, SOCKSRefused},
	policy.UpgradeDenied:    {403, false, SOCKSRefused},
	policy.Canary:           {403, false, SOCKSRefused},

	policy.ResponseRefused:       {502, false, SOCKSFailure},
	policy.MalformedResponse:     {502, false, SOCKSFailure},
	policy.CredentialRefused:     {403, false, SOCKSRefused},
	policy.CredentialUnavailable: {503, true, SOCKSFailure},

	policy.NetworkDNS:         {502, true, SOCKSHost},
	policy.NetworkRefused:     {502, true, SOCKSConnection},
	policy.NetworkUnreachable: {502, true, SOCKSNetwork},
	policy.NetworkTLS:         {502, true, SOCKSFailure},
	policy.NetworkReset:       {502, true, SOCKSFailure},
	policy.NetworkTimeout:     {504, true, SOCKSHost},

	policy.UpstreamRefused: {502, false, SOCKSFailure},
}

// To returns the answer to refusals of a class.
func To(class policy.Class) Answer {
	if a, ok := answers[class]; ok {
		return a
	}
	return Answer{403, false, SOCKSRefused}
}

const (
	askMessage     = "Waiting for a person to approve this. Try again in 15 s."
	policyMessage  = "Blocked by egress policy. This is a policy decision, not a network failure: do not retry and do not look for another route."
	requestMessage = "The request could not be understood, so it was not passed on."
	laterMessage   = "egressd cannot pass this on now. Retrying later may help."
	whoMessage     = "The proxy needs the user name and password of a sandbox."
	networkMessage = "The policy allows this request, but the connection failed."
	answerMessage  = "The policy allows this request, but egressd could not read the response. Do not retry: the reason says what was wrong."
	otherMessage   = "The policy of egressd allows this request, but the upstream proxy refused it. Do not retry: its operator decides."
)

// Message tells a program what to do about the answer.
func (a Answer) Message() string {
	switch {
	case a.Status == 407:
		return whoMessage
	case a.waits():
		return askMessage
	case a.Status == 403:
		return policyMessage
	case a.Status < 429:
		return requestMessage
	case a.Status < 502 || a.Status == 503:
		return laterMessage
	default:
		return networkMessage
	}
}

func messageOf(r *egress.Refusal, a Answer) string {
	message := a.Message()
	switch r.Decision.Class {
	case policy.UpstreamRefused:
		message = otherMessage
	case policy.MalformedResponse:
		message = answerMessage
	}
	if r.Hint == "" {
		return message
	}
	return message + " " + r.Hint
}

// waits reports whether a person has still to say whether it may pass.
func (a Answer) waits() bool { return a.Status == 403 && a.retry }

// A Recipient is the program that gets a reply, as far as the form of the reply depends on it.
type Recipient struct{ Agent, Accept string }

// RecipientOf returns who sent a request with these fields.
func RecipientOf(f http1.Fields) Recipient {
	return Recipient{Agent: f.Get("User-Agent"), Accept: f.Get("Accept")}
}

// statusFor returns the status that a recipient gets. Clients of the Model Context Protocol, which ask for events, take 403
// for a server that wants a login, and remember it when the policy has long changed: they get 451 (RFC 7725).
func (a Answer) statusFor(to Recipient) int {
	if a.Status == 403 && strings.Contains(to.Accept, "text/event-stream") {
		return 451
	}
	return a.Status
}

// A Reply is an answer of egressd itself, in any version of HTTP.
type Reply struct {
	Status int
	Phrase string // in HTTP/1
	Fields http1.Fields
	Body   []byte
}

// ReplyTo renders a refusal. Clients of MCP show the errors of JSON-RPC to the model only in a response that is 200, so a
// refused message of MCP is answered so, and a refused request of GraphQL as servers of GraphQL refuse it.
func ReplyTo(r *egress.Refusal, a Answer, to Recipient) Reply {
	a.retry = a.retry && !r.Final
	status := a.statusFor(to)
	kind, body := replyBody(r, a, to)
	switch {
	case r.MCPID != "":
		status, kind, body = http.StatusOK, "application/json", mcpError(r, a)
	case r.Decision.Class == policy.ModelDenied:
		kind, body = "application/json", modelError(r)
	case r.Decision.Class == policy.GraphQLDenied && r.Method == http.MethodPost:
		status, kind, body = http.StatusOK, "application/json", graphQLError(r, a)
	}
	return Reply{Status: status, Phrase: ReasonPhrase(r, a), Fields: Fields(r, a, kind, len(body)), Body: body}
}

// HTTP1 returns the reply as a whole HTTP/1 response after which the connection is closed.
func (r Reply) HTTP1() []byte {
	b := make([]byte, 0, 512+len(r.Body))
	b = http1.AppendResponse(b, r.Status, r.Phrase, append(r.Fields, http1.Field{Name: "Connection", Value: "close"}))
	return append(b, r.Body...)
}

// HTTP renders a refusal as a whole HTTP response after which the
// connection is closed.
func HTTP(r *egress.Refusal, to Recipient) []byte {
	return ReplyTo(r, To(r.Decision.Class), to).HTTP1()
}

// Fields are the fields of a reply with a body of a media type.
func Fields(r *egress.Refusal, a Answer, kind string, length int) http1.Fields {
	class := r.Decision.Class
	fields := make(http1.Fields, 0, 10)
	add := func(name, value string) { fields = append(fields, http1.Field{Name: name, Value: value}) }
	add("Content-Type", kind)
	add("Content-Length", strconv.Itoa(length))
	add("X-Content-Type-Options", "nosniff")
	if kind == htmlType { // the browser counts the page to the origin of the requested host
		add("Content-Security-Policy", "default-src 'none'; sandbox")
	}
	add("Proxy-Status", "egressd; error="+proxyError(a, class)+`; details="`+string(class)+"; "+r.ID.String()+`"`)
	if a.Status == 403 && !a.waits() {
		add("X-Proxy-Error", "blocked-by-allowlist")
	}
	if a.Status == 407 {
		add("Proxy-Authenticate", "Basic realm=\"egressd\"")
	}
	if a.Status == 429 || a.Status == 503 {
		add("Retry-After", "5")
	}
	if a.waits() {
		add("Retry-After", "15")
	}
	add("X-Egressd-Id", r.ID.String())
	add("Cache-Control", "no-store")
	return fields
}

// mcpError renders a refusal as a response of JSON-RPC 2.0. The code is none of those that JSON-RPC and MCP have.
func mcpError(r *egress.Refusal, a Answer) []byte {
	type rpcError struct {
		Code    int             `json:"code"`
		Message string          `json:"message"`
		Data    json.RawMessage `json:"data"`
	}
	body, err := json.Marshal(struct {
		Version string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   rpcError        `json:"error"`
	}{"2.0", json.RawMessage(r.MCPID), rpcError{a.Status, Sentence(r), problem(r, a)}})
	if err != nil {
		return problem(r, a) // the id was read as JSON, so it is JSON
	}
	return append(body, '\n')
}

// graphQLError renders a refusal as a response of GraphQL. Clients show errors[].message, so it leaves out what would be allowed,
// which may be very long.
func graphQLError(r *egress.Refusal, a Answer) []byte {
	short := *r
	short.Decision.AllowedIf, short.AskAt = nil, ""
	type graphError struct {
		Type       string          `json:"type"`
		Message    string          `json:"message"`
		Extensions json.RawMessage `json:"extensions"`
	}
	body, err := json.Marshal(struct {
		Errors []graphError `json:"errors"`
	}{[]graphError{{"FORBIDDEN", Sentence(&short), problem(r, a)}}})
	if err != nil {
		return problem(r, a) // it is JSON
	}
	return append(body, '\n')
}

// modelError renders a refusal as the errors of model APIs are: their SDKs show error.message, or the whole.
func modelError(r *egress.Refusal) []byte {
	type apiError struct {
		Type    string       `json:"type"`
		Code    policy.Class `json:"code"`
		Message string       `json:"message"`
	}
	body, err := json.Marshal(struct {
		Type  string       `json:"type"`
		Error apiError     `json:"error"`
		Class policy.Class `json:"class"`
		ID    string       `json:"id"`
		Rule  string       `json:"rule"`
	}{"error", apiError{"permission_error", r.Decision.Class, Sentence(r)}, r.Decision.Class, r.ID.String(), r.Decision.Rule})
	if err != nil {
		return []byte("{}\n") // strings always marshal
	}
	return append(body, '\n')
}

// ReasonPhrase is all that many clients show of a refused CONNECT.
func ReasonPhrase(r *egress.Refusal, a Answer) string {
	const most = 120
	lead, where := "Blocked by egressd: ", ""
	if a.Status >= 500 {
		lead = "Failed in egressd: "
	}
	if r.Destination.Host != "" {
		where = r.Destination.String() + " "
	}
	why := string(r.Decision.Class) + " (" + r.ID.String() + ")"
	if len(lead)+len(where)+len(why) <= most {
		return lead + where + why
	}
	return lead + why
}

// proxyError is the error type of RFC 9209 §2.3.
func proxyError(a Answer, class policy.Class) string {
	switch {
	case class == policy.NetworkDNS:
		return "dns_error"
	case class == policy.NetworkRefused:
		return "connection_refused"
	case class == policy.NetworkTimeout:
		return "connection_timeout"
	case class == policy.NetworkUnreachable:
		return "destination_ip_unroutable"
	case class == policy.NetworkReset:
		return "connection_terminated"
	case class == policy.NetworkTLS, class == policy.MalformedResponse:
		return "http_protocol_error"
	case class == policy.UpstreamRefused:
		return "proxy_internal_response"
	case class == policy.AddressDenied:
		return "destination_ip_prohibited"
	case class == policy.ByteBudget:
		return "http_request_denied"
	case a.Status == 429:
		return "connection_limit_reached"
	case a.Status == 503:
		return "proxy_internal_error"
	case a.Status == 400 || a.Status == 431:
		return "http_request_error"
	default:
		return "http_request_denied"
	}
}

const lfsType = "application/vnd.git-lfs+json"

const htmlType = "text/html; charset=utf-8"

func replyBody(r *egress.Refusal, a Answer, to Recipient) (kind string, body []byte) {
	switch {
	case strings.HasPrefix(to.Agent, "git/"):
		return "text/plain; charset=utf-8", []byte(Plain(r, a))
	case strings.Contains(to.Accept, lfsType): // git-lfs prints the message of its own type alone
		return lfsType, problem(reasoned(r, a), a)
	case strings.HasPrefix(to.Agent, "GitHub CLI "): // gh prints the message alone
		return "application/json; charset=utf-8", problem(reasoned(r, a), a)
	case strings.Contains(to.Accept, "text/html"):
		return htmlType, page(r, a)
	default:
		return "application/problem+json", problem(r, a)
	}
}

// reasoned is r with the reason and the words of the operator in its message, for clients that show nothing else.
func reasoned(r *egress.Refusal, a Answer) *egress.Refusal {
	said := *r
	if reason := reasonOf(r, a); reason != "" {
		said.Hint = strings.TrimSpace(r.Hint + " Reason: " + printable.Text(reason))
	}
	if r.Message != "" {
		said.Hint = strings.TrimSpace(said.Hint + " The operator says: " + printable.Text(r.Message))
	}
	return &said
}

// reasonOf returns the reason of a refusal. It is empty where it would tell a guess at credentials from another.
func reasonOf(r *egress.Refusal, a Answer) string {
	if a.Status == 407 {
		return ""
	}
	return r.Decision.Reason
}

// remarks are what a reply says after its message: the reason, what would be allowed, and how to have it allowed.
func remarks(r *egress.Refusal, a Answer) (all []string) {
	if reason := reasonOf(r, a); reason != "" {
		all = append(all, "Reason: "+reason)
	}
	if len(r.Decision.AllowedIf) > 0 {
		all = append(all, "Allowed if: "+strings.Join(r.Decision.AllowedIf, "; or "))
	}
	if r.Message != "" {
		all = append(all, "The operator says: "+r.Message)
	}
	if at := askAt(r, a); at != "" {
		all = append(all, "From inside the sandbox: "+at+" says what may be reached, and takes requests for more.")
	}
	if command := commandFor(r); command != "" { // the last: in one line, everything behind it is a part of the command
		all = append(all, "To allow it: "+command)
	}
	for i := range all {
		all[i] = printable.Text(all[i])
	}
	return all
}

// askAt returns where the sandbox may ask about a refusal of the policy, or "".
func askAt(r *egress.Refusal, a Answer) string {
	if a.Status != 403 || a.waits() {
		return ""
	}
	return r.AskAt
}

// Plain returns a refusal as text of several lines.
func Plain(r *egress.Refusal, a Answer) string {
	return strings.Join(append([]string{ReasonPhrase(r, a), messageOf(r, a)}, remarks(r, a)...), "\n") + "\n"
}

// Sentence renders a refusal as one line of text.
func Sentence(r *egress.Refusal) string {
	a := To(r.Decision.Class)
	return strings.Join(append([]string{ReasonPhrase(r, a) + ". " + messageOf(r, a)}, remarks(r, a)...), " ")
}

// ShortSentence is a sentence for clients that cut long lines. Where a command allows the request, the line has no room for more.
func ShortSentence(r *egress.Refusal) string {
	short := *r
	if commandFor(r) != "" {
		short.AskAt = ""
	}
	return Sentence(&short)
}

func page(r *egress.Refusal, a Answer) []byte {
	title := html.EscapeString(ReasonPhrase(r, a))
	rest := ""
	for _, remark := range remarks(r, a) {
		rest += "<p>" + html.EscapeString(remark) + "</p>"
	}
	return fmt.Appendf(nil, "<!doctype html><meta charset=utf-8><title>%s</title><h1>%s</h1><p>%s</p>%s<p>Class %s, id %s.</p>\n",
		title, title, html.EscapeString(messageOf(r, a)), rest, r.Decision.Class, r.ID)
}

// A problemBody is the contract of the JSON reply.
type problemBody struct {
	Error       string       `json:"error"`
	Class       policy.Class `json:"class"`
	ID          string       `json:"id"`
	Destination string       `json:"destination,omitempty"`
	Method      string       `json:"method,omitempty"`
	Rule        string       `json:"rule"`
	Retryable   bool         `json:"retryable"`
	Message     string       `json:"message"`
	Reason      string       `json:"reason,omitempty"`
	AllowedIf   []string     `json:"allowed_if"`
	Fix         string       `json:"fix,omitempty"`
	Layer       policy.Layer `json:"layer,omitempty"` // who wrote the rule
	Ask         string       `json:"ask,omitempty"`   // where the sandbox may ask about it, and for more

	DenyMessage string `json:"deny_message,omitempty"` // the operator's words
}

func problem(r *egress.Refusal, a Answer) []byte {
	p := problemBody{
		Error: "egress_denied", Class: r.Decision.Class, ID: r.ID.String(), Method: r.Method,
		Rule: r.Decision.Rule, Layer: r.Decision.Layer, Retryable: a.retry, Message: messageOf(r, a), Reason: reasonOf(r, a), AllowedIf: r.Decision.AllowedIf, Fix: commandFor(r), Ask: askAt(r, a), DenyMessage: r.Message,
	}
	if a.Status >= 500 {
		p.Error = "egress_failed"
	}
	if p.AllowedIf == nil {
		p.AllowedIf = []string{}
	}
	if r.Destination.Host != "" {
		p.Destination = r.Destination.String()
	}
	if p.Method == "" && a.Status != 400 {
		p.Method = http.MethodConnect
	}
	body, err := json.Marshal(p)
	if err != nil {
		return []byte("{}\n") // strings and a bool always marshal
	}
	return append(body, '\n')
}

// commandFor returns the command that opens the way, or "". It offers no command for a private address and none
// against a written rule. A pending question is answered by a command, too.
func commandFor(r *egress.Refusal) string {
	if To(r.Decision.Class).waits() && r.Decision.Question != "" {
		if strings.HasPrefix(r.FixFlags, " --save") { // no daemon takes the answer: egressd run asks on its terminal
			return ""
		}
		return shell.Program() + " answer " + r.Decision.Question + " yes" + r.FixFlags
	}
	return r.Fix()
}

// ToMalformed returns the answer to a refusal; if err says what was malformed, with the status that its problem has.
func ToMalformed(r *egress.Refusal, err error) Answer {
	a := To(r.Decision.Class)
	if bad, ok := errors.AsType[*http1.MalformedError](err); ok && a.Status == 400 && bad.Status != 0 {
		a.Status = bad.Status
	}
	return a
}

// StatusText is the phrase of a response status. An upstream's own is not
// passed on: it could be one of ours.
func StatusText(status int) string {
	if text := http.StatusText(status); text != "" {
		return text
	}
	return "Status " + strconv.Itoa(status)
}
