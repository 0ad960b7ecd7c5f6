package inspect

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
)

const (
	gh, npm, claude, gemini = "https://api.github.com/repos/acme/app", "https://npm.allowed.test", "https://api.anthropic.com", "https://generativelanguage.googleapis.com/v1/models"
	webGit                  = "https://github.com/acme/app.git/info/refs?service=git-upload-pack"
	bucket, s3, sts         = "https://acme-build.s3.eu-west-1.amazonaws.com", "https://s3.eu-west-1.amazonaws.com", "https://sts.eu-west-1.amazonaws.com/"
	gitRepo, mcp, model     = "https://git.allowed.test/acme/app.git", "https://mcp.allowed.test/mcp", "https://model.allowed.test"

	noObject, anObject = "0000000000000000000000000000000000000000", "1111111111111111111111111111111111111111"
)

// casesOf are the published cases by number, and others. Signatures in them hold for some minutes.
func casesOf(t *testing.T, v map[string]string) (all []insideCase) {
	all = slices.Concat(credentialCases(v), awsCases(t, v), restCases())
	for i := range all { // whose hosts have a credential: without TLS nothing passes
		all[i].clear = anyClass
	}
	return slices.Concat(all, elsewhereCases(v), gitCases(), graphqlCases(), mcpCases(), modelCases(), bodyCases())
}

// credentialCases are requests to hosts that have a credential.
func credentialCases(v map[string]string) []insideCase {
	token, key, ai, pkg := v["GH_TOKEN"], v["ANTHROPIC_API_KEY"], v["GEMINI_API_KEY"], v["NPM_TOKEN"]
	const refused, stray = policy.CredentialRefused, "placeholder in another place"
	return []insideCase{
		{id: "1", says: "the placeholder in a body", ask: "POST " + gh + "/issues\nContent-Type: application/json\n\n{\"body\":\"" + token + "\"}", up: `{"body":"` + token},
		{id: "1", says: "the placeholder in a path and an unknown field", ask: "GET " + gh + "/contents/" + token + "\nX-Other: " + token, up: "X-Other: " + token, noted: stray},
		{id: "3", says: "two fields Authorization", ask: "GET " + gh + "\nAuthorization: token " + token + "\nAuthorization: token ghp_foreign", want: refused},
		{id: "4", says: "a foreign Bearer beside the placeholder", ask: "POST " + claude + "/v1/messages\nX-Api-Key: " + key + "\nAuthorization: Bearer foreign\n\n{}", want: refused},
		{id: "5", says: "a foreign key in the query", ask: "GET " + gemini + "?key=AIzaForeign", want: refused},
		{id: "6", says: "under an escaped name", ask: "GET " + gemini + "?%6bey=AIzaForeign", want: refused},
		{id: "7", says: "Basic with 65 bytes beside the placeholder", ask: "GET " + webGit + "\nAuthorization: " + basicOf(token+":"+strings.Repeat("p", 65)), want: refused},
		{id: "8", says: "base64 with junk", ask: "GET " + webGit + "\nAuthorization: " + basicOf("me:"+token) + "!", want: refused},
		{id: "8", says: "base64 with a line feed", ask: "GET " + webGit + "\nAuthorization: " + basicOf("me:" + token)[:20] + "␊" + basicOf("me:" + token)[20:], want: policy.MalformedRequest},
		{id: "9", says: "the placeholder in another case", ask: "GET " + gh + "\nAuthorization: token " + strings.ToLower(token), want: refused},
		{id: "11", says: "nothing sent", ask: "GET " + npm + "/left-pad", up: "Authorization: Bearer " + caseSecrets["npm.token"]},
		{id: "12", says: "an echo in every form", ask: "GET " + npm + "/echo\nAuthorization: Bearer " + pkg, down: "you sent Bearer ****"},
		{id: "13", says: "gzip that nobody asked for", ask: "GET " + npm + "/gzip", want: policy.ResponseRefused},
		{id: "14", says: "a new key of Anthropic", ask: "POST " + claude + "/api/oauth/claude_cli/create_api_key\n\n{}", want: policy.RuleDeny},
		{id: "14", says: "a new token of npm", ask: "POST " + npm + "/-/npm/v1/tokens\n\n{}", want: policy.RuleDeny},
		{id: "15", says: "a refresh with the placeholder", ask: "POST https://platform.claude.com/v1/oauth/token\nContent-Type: application/x-www-form-urlencoded\n\ngrant_type=refresh_token&refresh_token=" + key, want: policy.RuleDeny},
		{id: "22", says: "a registry that names another realm", ask: "GET https://registry.allowed.test/v2/acme/app/manifests/latest", up: "Authorization: Bearer REALtokenOfTheRegistryREAL"},
		{id: "23", says: "a scope with dots", ask: "GET https://registry.allowed.test/v2/a/../b/manifests/latest", want: refused},
		{id: "25", says: "a secret that cannot be read", ask: "GET https://gone.allowed.test/", want: policy.CredentialUnavailable},

		{id: "own", says: "the placeholder of another credential", ask: "GET " + npm + "/left-pad\nAuthorization: Bearer " + token, want: refused},
		{id: "own", says: "two in one field", ask: "GET " + npm + "/left-pad\nAuthorization: Bearer " + pkg + ", Bearer npm_foreign", want: refused},
		{id: "own", says: "a field that another service reads", ask: "GET " + npm + "/left-pad\nX-JFrog-Art-Api-Key: foreign", want: refused},
		{id: "own", says: "a field with a short name", ask: "GET " + npm + "/left-pad\nToken: foreign", want: refused},
		{id: "own", says: "a foreign cookie beside the placeholder", ask: "GET " + gh + "\nAuthorization: token " + token + "\nCookie: user_session=foreign", want: refused},
		{id: "own", says: "a foreign token in trailers", ask: "POST " + npm + "/left-pad\nTransfer-Encoding: chunked\nTrailer: Authorization\n\n0\r\nAuthorization: Bearer npm_foreign\r\n\r\n", up: "Authorization: Bearer " + caseSecrets["npm.token"], h1: true},
		{id: "own", says: "a connection that nominates the field", ask: "GET " + npm + "/left-pad\nAuthorization: Bearer npm_foreign\nConnection: Authorization", up: "Authorization: Bearer " + caseSecrets["npm.token"], h1: true},
		{id: "own", says: "the placeholder in the query", ask: "GET " + gemini + "?key=" + ai, up: "key=" + caseSecrets["gemini.key"]},
		{id: "own", says: "two parameters, of which one is the placeholder", ask: "GET " + gemini + "?key=" + ai + "&key=AIzaForeign", want: refused},
		{id: "own", says: "a minting path with an escape", ask: "POST " + npm + "/-/npm/v1/%74okens\n\n{}", want: policy.RuleDeny},
		{id: "own", says: "a minting path with two slashes", ask: "POST " + npm + "//-/npm/v1/tokens\n\n{}", want: policy.MalformedRequest},
		{id: "own", says: "the layer of another repository", ask: "POST https://registry.allowed.test/v2/acme/app/blobs/uploads/?mount=sha256:aa&from=evil/app", up: "Authorization: Bearer REALtokenOfTheRegistryREAL"},
	}
}

func basicOf(text string) string { return "Basic " + base64.StdEncoding.EncodeToString([]byte(text)) }

// awsCases are requests that the placeholder has signed.
func awsCases(t *testing.T, v map[string]string) []insideCase {
	const refused, unsigned = policy.CredentialRefused, "UNSIGNED-PAYLOAD"
	foreign := map[string]string{"AWS_ACCESS_KEY_ID": "AKIAFOREIGNFOREIGN01", "AWS_SECRET_ACCESS_KEY": "foreign"}
	other := signed(t, v, "PUT", bucket+"/x", "s3", "eu-west-1", "", "other")
	return []insideCase{
		{id: "14", says: "a role", ask: signed(t, v, "POST", sts, "sts", "eu-west-1", "", "Action=AssumeRole&RoleArn=arn:aws:iam::1:role/x", "Content-Type", "application/x-www-form-urlencoded"), want: refused},
		{id: "16", says: "a foreign key id", ask: signed(t, foreign, "PUT", bucket+"/x", "s3", "eu-west-1", "", "x"), want: refused},
		{id: "17", says: "another region", ask: signed(t, v, "PUT", bucket+"/x", "s3", "us-east-1", "", "x"), want: refused},
		{id: "17", says: "another service", ask: signed(t, v, "POST", sts, "iam", "eu-west-1", "", "Action=ListUsers", "Content-Type", "application/x-www-form-urlencoded"), want: refused},
		{id: "18", says: "the hash of another body", ask: strings.TrimSuffix(other, "other") + "evil!", want: refused},
		{id: "19", says: "a foreign bucket by host", ask: signed(t, v, "PUT", "https://evil.s3.eu-west-1.amazonaws.com/x", "s3", "eu-west-1", "", "x"), want: refused},
		{id: "19", says: "a foreign bucket by path", ask: signed(t, v, "PUT", s3+"/evil/x", "s3", "eu-west-1", "", "x"), want: refused},
		{id: "19", says: "an ACL", ask: signed(t, v, "PUT", bucket+"/x?acl=", "s3", "eu-west-1", "", "x"), want: refused},
		{id: "19", says: "a copy from elsewhere", ask: signed(t, v, "PUT", bucket+"/x", "s3", "eu-west-1", "", "", "X-Amz-Copy-Source", "/evil/x"), want: refused},
		{id: "20", says: "a foreign signed URL", ask: "GET " + bucket + "/x?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAFOREIGN%2F20261129%2Feu-west-1%2Fs3%2Faws4_request&X-Amz-Date=20261129T000000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature=00", want: refused},
		{id: "21", says: "a body that is signed piece by piece", ask: signed(t, v, "PUT", bucket+"/x", "s3", "eu-west-1", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "4;chunk-signature=00\r\ntest\r\n0;chunk-signature=00\r\n\r\n"), want: refused},

		{id: "own", says: "an object of the bucket", ask: signed(t, v, "PUT", bucket+"/x", "s3", "eu-west-1", "", "x"), up: "X-Amz-Expected-Bucket-Owner: 123456789012"},
		{id: "own", says: "an object whose hash is not signed", ask: signed(t, v, "PUT", bucket+"/x", "s3", "eu-west-1", unsigned, "x"), up: "X-Amz-Content-Sha256: " + unsigned},
		{id: "own", says: "an owner of the sandbox's own choice", ask: signed(t, v, "PUT", bucket+"/x", "s3", "eu-west-1", "", "x", "X-Amz-Expected-Bucket-Owner", "999999999999"), up: "X-Amz-Expected-Bucket-Owner: 123456789012"},
		{id: "own", says: "an ACL under an escaped name", ask: signed(t, v, "PUT", bucket+"/x?%61cl=", "s3", "eu-west-1", "", "x"), want: refused},
		{id: "own", says: "a copy from elsewhere, escaped", ask: signed(t, v, "PUT", bucket+"/x", "s3", "eu-west-1", "", "", "X-Amz-Copy-Source", "%2Fevil%2Fx"), want: refused},
		{id: "own", says: "a grant", ask: signed(t, v, "PUT", bucket+"/x", "s3", "eu-west-1", "", "x", "X-Amz-Grant-Read", "uri=http://acs.amazonaws.com/groups/global/AllUsers"), want: refused},
		{id: "own", says: "the bucket by path, with dots", ask: strings.Replace(signed(t, v, "PUT", s3+"/acme-build/x", "s3", "eu-west-1", "", "x"), "/acme-build/x", "/acme-build/../evil/x", 1), want: refused},
	}
}

// elsewhereCases are requests to hosts that have no credential.
func elsewhereCases(v map[string]string) []insideCase {
	token := v["NPM_TOKEN"]
	const stray = "placeholder in another place"
	return []insideCase{
		{id: "2", says: "the placeholder to another host", ask: "GET https://other.allowed.test/\nAuthorization: Bearer " + token, up: "Authorization: Bearer " + token, noted: stray},
		{id: "10", says: "a redirect that is followed", before: []string{"GET " + npm + "/away\nAuthorization: Bearer " + token}, want: "",
			ask: "GET https://other.allowed.test/away\nAuthorization: Bearer " + token, up: "Authorization: Bearer " + token, noted: stray},
		{id: "24", says: "the field that the policy sets", ask: "GET https://set.allowed.test/\nOpenAI-Organization: org-thief", up: "Openai-Organization: org-acme\r\n"},
	}
}

// gitCases are pushes, fetches and large files.
func gitCases() []insideCase {
	const refused = policy.GitDenied
	push := func(body string) string {
		return "POST " + gitRepo + "/git-receive-pack\nContent-Type: application/x-git-receive-pack-request\n\n" + body
	}
	commands := func(lines ...string) string {
		text := packet(lines[0] + "\x00 report-status side-band-64k agent=lab")
		for _, line := range lines[1:] {
			text += packet(line)
		}
		return text + "0000" + emptyPack
	}
	create := func(ref string) string { return commands(noObject + " " + anObject + " " + ref) }
	noise := make([]byte, 33<<10)
	rand.Read(noise)
	var endless strings.Builder
	endless.WriteString(packet(noObject + " " + anObject + " refs/heads/agent/x\x00report-status"))
	for i := 0; endless.Len() < 66<<10; i++ {
		endless.WriteString(packet(noObject + " " + anObject + " refs/heads/agent/x" + hex.EncodeToString(noise[40*i:40*i+40])))
	}
	compressed := func(body string) string {
		return strings.Replace(push(gzipped(body)), "\n\n", "\nContent-Encoding: gzip\n\n", 1)
	}
	const large = "\nContent-Type: application/vnd.git-lfs+json\nAccept: application/vnd.git-lfs+json\n\n"
	batch := func(ref string) string {
		return "POST " + gitRepo + "/info/lfs/objects/batch" + large + `{"operation":"upload","ref":{"name":"` + ref + `"},"transfers":["basic"],"objects":[{"oid":"` + largeOID + `","size":4}]}`
	}
	const href = "PUT https://store.allowed.test/o/1?sig=%2Fx\nContent-Type: application/octet-stream\n\ntest"
	return []insideCase{
		{id: "own", says: "a push", ask: push(create("refs/heads/agent/x")), up: "refs/heads/agent/x"},
		{id: "26", says: "dot dot in a ref", ask: push(create("refs/heads/agent/../main")), want: refused},
		{id: "27", says: "two slashes", ask: push(create("refs/heads/agent//x")), want: refused},
		{id: "27", says: "a lock", ask: push(create("refs/heads/agent/x.lock")), want: refused},
		{id: "27", says: "at and brace", ask: push(create("refs/heads/agent/@{x")), want: refused},
		{id: "28", says: "another case", ask: push(create("refs/heads/Agent/x")), want: refused},
		{id: "29", says: "a NUL in a ref", ask: push(commands(noObject+" "+anObject+" refs/heads/agent/x", noObject+" "+anObject+" refs/heads/agent/y\x00/z")), want: refused},
		{id: "29", says: "a line feed in a ref", ask: push(create("refs/heads/agent/x\nrefs/heads/main")), want: refused},
		{id: "29", says: "a space behind a ref", ask: push(create("refs/heads/agent/x ")), want: refused},
		{id: "30", says: "a second command to main", ask: push(commands(noObject+" "+anObject+" refs/heads/agent/x", noObject+" "+anObject+" refs/heads/main")), want: refused},
		{id: "31", says: "the length 0003", ask: push("0003" + create("refs/heads/agent/x")), want: refused},
		{id: "31", says: "the length fff1", ask: push("fff1" + create("refs/heads/agent/x")), want: refused},
		{id: "31", says: "the length 00zz", ask: push("00zz" + create("refs/heads/agent/x")), want: refused},
		{id: "31", says: "a short one", ask: push(create("refs/heads/agent/x")[:60]), want: refused},
		{id: "32", says: "no flush until the bound", ask: compressed(endless.String()), want: refused},
		{id: "33", says: "a signed push", ask: push(packet("push-cert\x00report-status") + create("refs/heads/agent/x")), want: refused},
		{id: "34", says: "bytes behind a probe", ask: push("0000" + create("refs/heads/agent/x")), want: refused},
		{id: "35", says: "a bomb", ask: compressed(strings.Repeat("0", 8<<20)), want: refused},
		{id: "36", says: "a delete", ask: push(packet(anObject+" "+noObject+" refs/heads/agent/x\x00report-status delete-refs") + "0000"), want: refused},
		{id: "37", says: "a pull request", ask: push(create("refs/pull/1/head")), want: refused},
		{id: "37", says: "a tag", ask: push(create("refs/tags/v1")), want: refused},
		{id: "37", says: "HEAD", ask: push(create("HEAD")), want: refused},
		{id: "38", says: "dots in the path", ask: "GET https://git.allowed.test/acme/app.git/../evil.git/info/refs?service=git-upload-pack", want: refused},
		{id: "39", says: "another case of the repository", ask: "GET https://git.allowed.test/ACME/App/info/refs?service=git-upload-pack", up: "/ACME/App/info/refs"},
		{id: "40", says: "git twice", ask: "GET https://git.allowed.test/acme/app.git.git/info/refs?service=git-upload-pack", want: refused},
		{id: "41", says: "the service twice", ask: "GET " + gitRepo + "/info/refs?service=git-upload-pack&service=git-receive-pack", want: refused},
		{id: "42", says: "the type of a fetch", ask: strings.Replace(push(create("refs/heads/agent/x")), "git-receive-pack-request", "git-upload-pack-request", 1), want: refused},
		{id: "43", says: "a batch for main", ask: batch("refs/heads/main"), want: refused},
		{id: "44", says: "an upload that nobody handed out", ask: strings.Replace(href, "/o/1", "/o/2", 1), want: refused},
		{id: "45", says: "with another query", before: []string{batch("refs/heads/agent/x")}, ask: strings.Replace(href, "%2Fx", "%2Fy", 1), want: refused},
		{id: "own", says: "as it was handed out", before: []string{batch("refs/heads/agent/x")}, ask: href, up: "\n\ntest", clear: refused},
		{id: "46", says: "an option that is not listed", ask: push(packet(noObject+" "+anObject+" refs/heads/agent/x\x00report-status push-options") + "0000" + packet("merge_request.create") + "0000" + emptyPack), want: refused},
		{id: "own", says: "an option that is listed", ask: push(packet(noObject+" "+anObject+" refs/heads/agent/x\x00report-status push-options") + "0000" + packet("ci.skip") + "0000" + emptyPack), up: "ci.skip"},
		{id: "own", says: "options that are announced and missing", ask: push(packet(noObject+" "+anObject+" refs/heads/agent/x\x00report-status push-options") + "0000" + emptyPack), want: refused},
		{id: "47", says: "a wiki", ask: "GET https://git.allowed.test/acme/app.wiki.git/info/refs?service=git-receive-pack", want: refused},
		{id: "own", says: "capabilities of a second command", ask: push(commands(noObject+" "+anObject+" refs/heads/agent/x", noObject+" "+anObject+" refs/heads/agent/y\x00report-status")), want: refused},
		{id: "own", says: "the dumb protocol", ask: "GET " + gitRepo + "/info/refs", want: refused},
		{id: "own", says: "compressed twice", ask: strings.Replace(compressed(gzipped(create("refs/heads/main"))), "Content-Encoding: gzip", "Content-Encoding: gzip, gzip", 1), want: refused},
	}
}

// restCases are requests to the interface of GitHub, under the preset.
func restCases() []insideCase {
	return []insideCase{
		{id: "56", says: "contents without a branch", ask: "PUT " + gh + "/contents/x\nContent-Type: application/json\n\n{\"message\":\"m\",\"content\":\"eA==\"}", want: policy.MethodDenied},
		{id: "57", says: "a gist", ask: "POST https://api.github.com/gists\nContent-Type: application/json\n\n{}", want: policy.PathDenied},
		{id: "57", says: "a fork", ask: "POST " + gh + "/forks\nContent-Type: application/json\n\n{}", want: policy.PathDenied},
		{id: "58", says: "another repository by number", ask: "GET https://api.github.com/repositories/42", want: policy.PathDenied},
		{id: "59", says: "a method in a field", ask: "POST " + gh + "/issues\nX-HTTP-Method-Override: DELETE\nContent-Type: application/json\n\n{}", want: policy.MethodDenied},
		{id: "60", says: "a file of another's release", ask: "POST https://uploads.github.com/repos/acme/other/releases/1/assets?name=x\n\nx", want: policy.PathDenied},
		{id: "own", says: "an issue", ask: "POST " + gh + "/issues\nContent-Type: application/json\n\n{}", up: "Authorization: token " + caseSecrets["github.token"]},
		{id: "own", says: "an issue in another case", ask: "POST https://api.github.com/repos/ACME/App/issues\nContent-Type: application/json\n\n{}", up: "/repos/ACME/App/issues"},
		{id: "own", says: "another repository behind dots", ask: "POST " + gh + "/../other/issues\nContent-Type: application/json\n\n{}", want: policy.RuleDeny},
		{id: "own", says: "another repository behind an escaped slash", ask: "POST https://api.github.com/repos/acme/app%2F..%2Fother/issues\nContent-Type: application/json\n\n{}", want: policy.RuleDeny},
	}
}

// graphqlCases are documents for a server whose rule lists a few mutations of one repository.
func graphqlCases() []insideCase {
	const refused = policy.GraphQLDenied
	ask := func(body string) string {
		return "POST https://hub.allowed.test/graphql\nContent-Type: application/json\n\n" + body
	}
	query := func(document string, variables ...string) string {
		return ask(fmt.Sprintf(`{"query":%q,"variables":{%s}}`, document, strings.Join(variables, ",")))
	}
	const comment = `mutation($i:ID!){addComment(input:{subjectId:$i,body:"x"}){clientMutationId}}`
	return []insideCase{
		{id: "own", says: "a comment", ask: query(comment, `"i":"I_app"`), up: "addComment", clear: refused},
		{id: "48", says: "an alias", ask: query(`mutation{addComment:deleteIssue(input:{issueId:"I_app"}){clientMutationId}}`), want: refused},
		{id: "49", says: "a fragment first", ask: query(`fragment f on Mutation{deleteIssue(input:{issueId:"I_app"}){clientMutationId}} mutation{...f}`), want: refused},
		{id: "50", says: "two operations", ask: ask(`{"query":"query a{viewer{login}} mutation b{deleteIssue(input:{issueId:\"I_app\"}){clientMutationId}}","operationName":"a"}`), want: refused},
		{id: "51", says: "the word in a text and a comment", ask: query("query{repository(owner:\"acme\",name:\"mutation{deleteIssue}\"){id}} # mutation{deleteIssue}"), up: "repository"},
		{id: "52", says: "a list of requests", ask: ask(`[{"query":"{viewer{login}}"}]`), want: refused},
		{id: "53", says: "a persisted query", ask: ask(`{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"00"}}}`), want: refused},
		{id: "54", says: "the id of another repository", ask: query(`mutation{addComment(input:{subjectId:"I_fork",body:"x"}){clientMutationId}}`), want: refused},
		{id: "54", says: "in a variable", ask: query(comment, `"i":"I_other"`), want: refused},
		{id: "55", says: "a head of another repository", ask: query(`mutation{createPullRequest(input:{repositoryId:"R_app",headRepositoryId:"R_fork",headRefName:"x",baseRefName:"main",title:"t"}){clientMutationId}}`), want: refused},
		{id: "own", says: "a default value beside the variable", ask: query(`mutation($i:ID="I_app"){addComment(input:{subjectId:$i,body:"x"}){clientMutationId}}`, `"i":"I_fork"`), want: refused},
		{id: "own", says: "the default value alone", ask: query(`mutation($i:ID="I_fork"){addComment(input:{subjectId:$i,body:"x"}){clientMutationId}}`), want: refused},
		{id: "own", says: "skipped, perhaps", ask: query(`mutation($s:Boolean!){deleteIssue(input:{issueId:"I_app"}) @skip(if:$s){clientMutationId}}`, `"s":true`), want: refused},
		{id: "own", says: "the query twice", ask: ask(`{"query":"{viewer{login}}","query":"mutation{deleteIssue(input:{issueId:\"I_app\"}){clientMutationId}}"}`), want: refused},
		{id: "own", says: "in the URL", ask: "GET https://hub.allowed.test/graphql?query=mutation%7BdeleteIssue%7D", want: refused},
		{id: "own", says: "in the URL beside a body", ask: strings.Replace(query(comment, `"i":"I_app"`), "/graphql", "/graphql?query=mutation%7BdeleteIssue%7D", 1), want: refused},
		{id: "own", says: "a text in three quotes", ask: query(`query{repository(owner:"acme",name:"""x"""){id}} `), want: refused},
		{id: "own", says: "as the document alone", ask: "POST https://hub.allowed.test/graphql\nContent-Type: application/graphql\n\n{viewer{login}}", want: refused},
		{id: "own", says: "a subscription", ask: query(`subscription{viewer{login}}`), want: refused},
	}
}

// mcpCases are messages to a server of MCP.
func mcpCases() []insideCase {
	const refused, latest = policy.MCPDenied, "MCP-Protocol-Version: 2026-07-28\n"
	ask := func(fields, body string) string {
		return "POST " + mcp + "\nContent-Type: application/json\nAccept: application/json, text/event-stream\n" + fields + "\n" + body
	}
	call := func(name string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":` + name + `,"arguments":{}}}`
	}
	meta := func(name, version string) string {
		return `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"` + name + `","arguments":{},"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version + `"}}}`
	}
	const search = `"search"`
	return []insideCase{
		{id: "61", says: "another name in the field", ask: ask(latest+"Mcp-Method: tools/call\nMcp-Name: search\n", meta("delete", "2026-07-28")), want: refused},
		{id: "62", says: "no field", ask: ask(latest, meta("search", "2026-07-28")), want: refused},
		{id: "62", says: "no field in an old version", ask: ask("MCP-Protocol-Version: 2025-11-25\n", call(search)), up: "tools/call"},
		{id: "63", says: "the field twice", ask: ask(latest+"Mcp-Method: tools/call\nMcp-Name: search\nMcp-Name: delete\n", meta("search", "2026-07-28")), want: refused},
		{id: "64", says: "in base64", ask: ask(latest+"Mcp-Method: tools/call\nMcp-Name: =?base64?Z3LDtsOfZQ==?=\n", meta("größe", "2026-07-28")), up: "größe"},
		{id: "65", says: "versions that differ", ask: ask(latest+"Mcp-Method: tools/call\nMcp-Name: search\n", meta("search", "2025-11-25")), want: refused},
		{id: "66", says: "a list", ask: ask("", "["+call(search)+","+call(`"delete"`)+"]"), want: refused},
		{id: "67", says: "the method twice", ask: ask("", `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"delete"}}`), want: refused},
		{id: "68", says: "in a capital", ask: ask("", `{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","params":{"name":"delete"}}`), want: refused},
		{id: "69", says: "escaped", ask: ask("", `{"jsonrpc":"2.0","id":1,"method":"ping","\u006dethod":"tools/call","params":{"name":"delete"}}`), want: refused},
		{id: "70", says: "half a pair", ask: ask("", call(`"search\ud800"`)), want: refused},
		{id: "71", says: "two values", ask: ask("", call(search)+call(`"delete"`)), want: refused},
		{id: "72", says: "as plain text", ask: strings.Replace(ask("", call(search)), "application/json\nAccept", "text/plain\nAccept", 1), want: refused},
		{id: "73", says: "UTF-16", ask: ask("", "\xff\xfe"+strings.Join(strings.Split(call(search), ""), "\x00")+"\x00"), want: refused},
		{id: "74", says: "65 levels", ask: ask("", strings.Replace(call(search), "{}", strings.Repeat("[", 63)+strings.Repeat("]", 63), 1)), want: refused},
		{id: "75", says: "32 MiB and a byte", ask: ask("Content-Length: 33554433\n", "{"), want: policy.BodyTooLarge},
		{id: "own", says: "62 levels below", ask: ask("", strings.Replace(call(search), "{}", strings.Repeat("[", 62)+strings.Repeat("]", 62), 1)), up: "[[["},
		{id: "own", says: "a notification", ask: ask("", `{"jsonrpc":"2.0","method":"notifications/initialized"}`), up: "initialized"},
		{id: "own", says: "full-width letters", ask: ask("", call(`"ｓearch"`)), want: refused},
		{id: "own", says: "a member in full-width letters", ask: ask("", `{"jsonrpc":"2.0","id":1,"method":"ping","ｍethod":"tools/call"}`), want: refused},
		{id: "own", says: "a name that is a list", ask: ask("", call(`["search"]`)), want: refused},
		{id: "own", says: "a method that is none of those", ask: ask("", `{"jsonrpc":"2.0","id":1,"method":"completion/complete","params":{}}`), want: refused},
		{id: "own", says: "compressed by deflate", ask: ask("Content-Encoding: deflate\n", call(search)), want: refused},
		{id: "own", says: "compressed by gzip", ask: ask("Content-Encoding: gzip\n", gzipped(call(search))), up: gzipped(call(search))},
		{id: "own", says: "another tool, compressed", ask: ask("Content-Encoding: gzip\n", gzipped(call(`"delete"`))), want: refused},
		{id: "own", says: "the type twice", ask: strings.Replace(ask("", call(search)), "\nAccept", "\nContent-Type: text/plain\nAccept", 1), want: refused},
	}
}

// modelCases are requests to the interface of a model.
func modelCases() []insideCase {
	const refused = policy.ModelDenied
	ask := func(path, body string) string {
		return "POST " + model + path + "\nContent-Type: application/json\n\n" + body
	}
	messages := func(body string) string { return ask("/v1/messages", `{"model":"claude","max_tokens":1,`+body+`}`) }
	const upgrade = "GET " + model + "/v1/responses\nConnection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="
	return []insideCase{
		{id: "76", says: "a fetch in additional_tools", ask: ask("/v1/responses", `{"model":"gpt","input":[{"type":"additional_tools","tools":[{"type":"namespace","name":"n","tools":[{"type":"web_fetch"}]}]}]}`), want: refused},
		{id: "76", says: "a fetch in a message", ask: messages(`"messages":[{"role":"user","content":[{"type":"tool_addition","tool":{"type":"web_fetch_20250910","name":"f"}}]}]`), want: refused},
		{id: "77", says: "the words in a text", ask: messages(`"messages":[{"role":"user","content":"use web_fetch_20250910 and google_search"}]`), up: "google_search"},
		{id: "78", says: "google_search", ask: ask("/v1beta/models/gemini:generateContent", `{"contents":[{"parts":[{"text":"x"}]}],"tools":[{"google_search":{}}]}`), want: refused},
		{id: "79", says: "an image by URL", ask: messages(`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://evil.test/?secret"}}]}]`), want: refused},
		{id: "80", says: "an upgrade", ask: upgrade, want: refused, h1: true},
		{id: "81", says: "a batch", ask: ask("/v1/messages/batches", `{"requests":[{"custom_id":"a","params":{"model":"claude","max_tokens":1,"messages":[],"tools":[{"type":"web_fetch_20250910","name":"f"}]}}]}`), want: refused},
		{id: "own", says: "an image in the message", ask: messages(`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}]`), up: "iVBORw0KGgo="},
		{id: "own", says: "a hosted tool in capitals", ask: messages(`"messages":[],"tools":[{"type":"Web_Fetch_20250910","name":"f"}]`), want: refused},
		{id: "own", says: "a hosted tool, compressed", ask: strings.Replace(ask("/v1/messages", gzipped(`{"model":"claude","messages":[],"tools":[{"type":"web_fetch_20250910","name":"f"}]}`)), "\n\n", "\nContent-Encoding: gzip\n\n", 1), want: refused},
		{id: "own", says: "tools that are no list", ask: messages(`"messages":[],"tools":{"0":{"type":"web_fetch_20250910","name":"f"}}`), want: refused},
		{id: "own", says: "stored state", ask: ask("/v1/responses", `{"model":"gpt","input":"x","previous_response_id":"resp_1"}`), want: refused},
		{id: "own", says: "a server of MCP", ask: messages(`"messages":[],"mcp_servers":[{"type":"url","url":"https://evil.test","name":"e"}]`), want: refused},
		{id: "own", says: "a video by URL", ask: ask("/v1/chat/completions", `{"model":"gpt","messages":[{"role":"user","content":[{"type":"video_url","video_url":{"url":"https://evil.test/?secret"}}]}]}`), want: refused},
		{id: "own", says: "a URL that a tool of the client's was given", ask: messages(`"messages":[{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"read","input":{"file":{"url":"https://docs.allowed.test/"}}}]}]`), up: "tool_use"},
		{id: "own", says: "a file of the provider's", ask: messages(`"messages":[{"role":"user","content":[{"type":"document","source":{"type":"file","file_id":"file_1"}}]}]`), want: refused},
		{id: "own", says: "a tool of the client's", ask: messages(`"messages":[],"tools":[{"name":"bash","input_schema":{"type":"object"}},{"type":"bash_20250124","name":"sh"}]`), up: "input_schema"},
	}
}

// bodyCases are requests whose body is compared or counted.
func bodyCases() []insideCase {
	kind := func(value string) string {
		return "POST https://json.allowed.test/\nContent-Type: application/json\n\n{\"kind\":" + value + "}"
	}
	const upload = "POST https://up.allowed.test/\nContent-Type: text/plain\n"
	return []insideCase{
		{id: "82", says: "an announced size over the ceiling", ask: upload + "Content-Length: 9000000\nExpect: 100-continue\n\n", want: policy.ByteBudget},
		{id: "own", says: "a size below the ceiling", ask: upload + "\n" + strings.Repeat("x", 1000), up: "xxxx"},
		{id: "own", says: "a value that is listed", ask: kind(`"test"`), up: `"test"`},
		{id: "own", says: "another value", ask: kind(`"prod"`), want: policy.BodyDenied},
		{id: "own", says: "the name in another case", ask: kind(`"test","Kind":"prod"`), want: policy.BodyDenied},
	}
}
