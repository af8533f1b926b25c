//! The page at `/`: a chat in one document, put together from the files beside this one.

use axum::body::Bytes;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

const DOCUMENT: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = concat!(include_str!("page/markdown.js"), include_str!("page/chat.js"));

/// A document and the headers that keep it what it is.
#[derive(Clone)]
pub(crate) struct Page {
    document: Bytes,
    policy: HeaderValue,
}

impl Page {
    /// Puts the page together.
    pub(crate) fn new() -> Self {
        let document = DOCUMENT.replace("/*STYLE*/", STYLE).replace("/*SCRIPT*/", SCRIPT);
        // Base64 and these words are ASCII, so this is a header; without a policy nothing on the page would work.
        let policy =
            HeaderValue::from_str(&policy()).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"));
        Self { document: document.into(), policy }
    }

    /// The answer to a request for it.
    pub(crate) fn response(&self) -> Response {
        let headers: [(HeaderName, HeaderValue); 6] = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (header::CONTENT_SECURITY_POLICY, self.policy.clone()),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        ];
        (headers, self.document.clone()).into_response()
    }
}

/// Nothing runs but the page's own script, nothing is asked but this server, and no text can become markup.
fn policy() -> String {
    let digest = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)));
    let (script, style) = (digest(SCRIPT), digest(STYLE));
    format!(
        "default-src 'none'; script-src {script}; style-src {style}; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_whole_and_needs_nothing_else() {
        let page = Page::new();
        let text = std::str::from_utf8(&page.document).unwrap();
        assert!(
            text.contains(&format!("<style>{STYLE}</style>")) && text.contains(&format!("<script>{SCRIPT}</script>"))
        );
        assert_eq!(text.matches("</script>").count(), 1);
        for outside in [
            " src=",
            "@import",
            "url(",
            "//cdn",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
        ] {
            assert!(!text.contains(outside), "{outside}");
        }
    }

    /// A policy of other texts would stop the page.
    #[test]
    fn the_policy_is_that_of_its_texts() {
        let page = Page::new();
        let policy = page.policy.to_str().unwrap();
        assert_eq!(policy.matches("'sha256-").count(), 2);
        assert!(policy.starts_with("default-src 'none'; script-src 'sha256-") && !policy.contains("unsafe"));
    }
}
