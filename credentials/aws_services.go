package credentials

import (
	"slices"
	"strings"
)

// An AWSService is one for which egressd signs requests.
type AWSService struct {
	Name string // as signatures write it

	// Operations are those that hand out no credential and open nothing to another account; "*" stands for any end. A
	// service without operations is judged by its paths.
	Operations []string

	Query bool // it speaks AWS Query alone
}

// AWSServices returns the services of the table. What another service would hand out is not known.
func AWSServices() []AWSService {
	return []AWSService{
		{Name: "bedrock"},
		{Name: "dynamodb", Operations: []string{
			"BatchExecuteStatement", "BatchGetItem", "BatchWriteItem", "DeleteItem", "DeleteTable", "Describe*", "ExecuteStatement", "ExecuteTransaction", "GetItem",
			"GetRecords", "GetShardIterator", "List*", "PutItem", "Query", "Scan", "TagResource", "TransactGetItems", "TransactWriteItems", "UntagResource", "UpdateItem", "UpdateTable", "UpdateTimeToLive",
		}},
		{Name: "ecr", Operations: []string{"BatchCheckLayerAvailability", "BatchGetImage", "Describe*", "GetLifecyclePolicy", "List*"}},
		{Name: "iam", Operations: []string{"Get*", "List*", "Simulate*"}, Query: true},
		{Name: "kinesis", Operations: []string{"Describe*", "GetRecords", "GetShardIterator", "List*", "PutRecord", "PutRecords"}},
		{Name: "kms", Operations: []string{"Decrypt", "Describe*", "Encrypt", "GenerateDataKey*", "GenerateMac", "GenerateRandom", "GetPublicKey", "List*", "ReEncrypt", "Sign", "Verify", "VerifyMac"}},
		{Name: "lambda"},
		{Name: "logs", Operations: []string{"CreateLogGroup", "CreateLogStream", "Describe*", "FilterLogEvents", "GetLog*", "GetQueryResults", "List*", "PutLogEvents", "StartQuery", "StopQuery"}},
		{Name: "monitoring", Operations: []string{"Describe*", "Get*", "List*", "PutMetricData"}},
		{Name: serviceS3},
		{Name: "sns", Operations: []string{"Get*", "List*", "Publish", "PublishBatch"}, Query: true},
		{Name: "sqs", Operations: []string{"ChangeMessageVisibility*", "DeleteMessage*", "Get*", "List*", "ReceiveMessage", "SendMessage*"}},
		{Name: "sts", Operations: []string{"DecodeAuthorizationMessage", "GetAccessKeyInfo", "GetCallerIdentity"}, Query: true},
	}
}

// Says lists what egressd signs for the service, for people: operations, or methods and paths.
func (s *AWSService) Says() []string {
	switch s.Name {
	case serviceS3:
		return s3OperationsSaid()
	case "bedrock", "lambda":
		at := s.paths()
		return []string{at.prefix + "*/" + strings.Join(at.last, "|")}
	}
	return s.Operations
}

// servicePaths are paths with one segment between a prefix and the last one.
type servicePaths struct {
	prefix string
	last   []string
}

func (s *AWSService) paths() servicePaths {
	if s.Name == "lambda" {
		return servicePaths{"/2015-03-31/functions/", []string{"invocations"}}
	}
	return servicePaths{"/model/", []string{"invoke", "invoke-with-response-stream", "converse", "converse-stream", "count-tokens"}}
}

// AWSServiceNames are the names of the table, in order.
func AWSServiceNames() (names []string) {
	for _, s := range AWSServices() {
		names = append(names, s.Name)
	}
	return names
}

// operationProblem says why a request, whose body is known, is not to be signed.
func (c *Credential) operationProblem(r *Request, service string) string {
	if service == serviceS3 {
		return ""
	}
	all := AWSServices()
	row := &all[slices.IndexFunc(all, func(s AWSService) bool { return s.Name == service })]
	operation, ok := row.operation(r)
	switch {
	case !ok:
		return "egressd cannot tell which operation of " + service + " the request asks for"
	case !row.signs(operation):
		return "egressd does not sign this operation of " + service + ": it hands out credentials, opens something to others, or is not in the table of egressd policy show credentials"
	}
	return ""
}

func (s *AWSService) signs(operation string) bool {
	return s.Operations == nil || slices.ContainsFunc(s.Operations, func(one string) bool {
		stem, open := strings.CutSuffix(one, "*")
		return one == operation || open && strings.HasPrefix(operation, stem)
	})
}

// operation returns the name of what a request asks for, in the protocol that its media type says. ok is false if the
// request names no operation or several, or if a server could read it in another protocol.
func (s *AWSService) operation(r *Request) (name string, ok bool) {
	if s.Operations == nil {
		return s.paths().operation(r.Target.Path)
	}
	target := r.Fields.Get(fieldTarget)
	var actions []string
	note := func(name, value string, _ parameter) {
		switch {
		case strings.EqualFold(name, "Action"):
			actions = append(actions, value)
		case strings.EqualFold(name, fieldTarget):
			actions = append(actions, value, value)
		}
	}
	eachParameter(r.Target.Query, note)
	media, _, _ := strings.Cut(strings.ToLower(r.Fields.Get("Content-Type")), ";")
	switch rpc, isRPC := strings.CutPrefix(r.Target.Path, "/service/"); {
	case media == "application/x-www-form-urlencoded", media == "" && len(r.Body) == 0: // AWS Query
		if r.Fields.Has("Content-Encoding") {
			return "", false
		}
		eachParameter(string(r.Body), note)
		if len(actions) != 1 || target != "" || isRPC {
			return "", false
		}
		name = actions[0]
	case s.Query || len(actions) > 0:
		return "", false
	case isRPC && media == "application/cbor" && target == "": // Smithy RPC v2
		_, name, _ = strings.Cut(rpc, "/operation/")
	case !isRPC && strings.HasPrefix(media, "application/x-amz-json-1."):
		name = target[strings.LastIndexByte(target, '.')+1:]
	}
	return name, name != "" && strings.Trim(name, letters+"0123456789") == ""
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// operation returns the last segment of a path, if it is listed.
func (p servicePaths) operation(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, p.prefix)
	_, last, two := strings.Cut(rest, "/")
	return last, ok && two && slices.Contains(p.last, last)
}
