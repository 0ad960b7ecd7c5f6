# from: browsers' lists, a URL put together
# allow: https://a.shop.test/v1/x
# deny: https://a.shop.test/v2/x
# deny: https://b.shop.test/v1/x
package egress

import rego.v1

url := sprintf("%s%s", [input.destination.host, input.http.path])

allow contains {"rule": "prefix"} if startswith(url, "a.shop.test/v1/")
