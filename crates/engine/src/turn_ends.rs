//! Where the turns of a conversation end in its prompt.

use pleach_text::{AddedTokens, ChatRequest, ChatTemplate, Content, Message, Part, Role, Tokenizer};

/// The conversation as it was rendered and encoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rendered<'a> {
    pub(crate) chat: &'a ChatRequest,
    pub(crate) text: &'a str,
    pub(crate) tokens: &'a [u32],
}

/// Tokens before the places where a later prompt is likely to go on differently, in order: after instructions and tools, after
/// the last question, and before the answer.
///
/// Templates drop thoughts of earlier turns, and open thoughts for the answer alone, so the next prompt of a conversation parts
/// from this one where the answer's turn begins, not where the prompt ends. Where that is, the template itself says: it renders
/// the conversation cut short, and what is the same at the front is what counts. One that refuses such a conversation gives no
/// place.
pub(crate) fn turn_ends(template: &ChatTemplate, tokenizer: &Tokenizer, prompt: Rendered<'_>) -> Vec<usize> {
    let shorter = [instructions(prompt.chat), until_question(prompt.chat), without_answer(prompt.chat)];
    let ends = shorter.into_iter().flatten().filter_map(|chat| {
        let text = template.render(&chat).ok()?.prompt;
        Some(common_tokens(tokenizer, prompt, &text))
    });
    let mut ends: Vec<usize> = ends.filter(|&end| end > 0 && end < prompt.tokens.len()).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// The instructions alone, with a question that begins unlike the first: many templates refuse to render none.
fn instructions(chat: &ChatRequest) -> Option<ChatRequest> {
    let count = chat.messages.iter().take_while(|message| message.role == Role::System).count();
    if count == 0 && chat.tools.is_empty() {
        return None;
    }
    let begins_so = chat.messages.get(count).is_some_and(|message| match &message.content {
        Content::Text(text) => text.starts_with('?'),
        Content::Parts(parts) => matches!(parts.first(), Some(Part::Text(text)) if text.starts_with('?')),
    });
    let other = if begins_so { "!" } else { "?" };
    let mut messages = chat.messages[..count].to_vec();
    messages.push(Message::text(Role::User, other));
    Some(ChatRequest { messages, ..chat.clone() })
}

/// Everything up to the last question, unless that is all there is.
fn until_question(chat: &ChatRequest) -> Option<ChatRequest> {
    let last = chat.messages.iter().rposition(|message| message.role == Role::User)?;
    let cut = &chat.messages[..=last];
    (cut.len() < chat.messages.len()).then(|| ChatRequest { messages: cut.to_vec(), ..before_answer(chat) })
}

fn without_answer(chat: &ChatRequest) -> Option<ChatRequest> {
    chat.add_generation_prompt.then(|| ChatRequest { messages: chat.messages.clone(), ..before_answer(chat) })
}

fn before_answer(chat: &ChatRequest) -> ChatRequest {
    ChatRequest {
        messages: Vec::new(),
        tools: chat.tools.clone(),
        kwargs: chat.kwargs.clone(),
        add_generation_prompt: false,
    }
}

/// Tokens at the front of the prompt whose text is at the front of `other` too.
fn common_tokens(tokenizer: &Tokenizer, prompt: Rendered<'_>, other: &str) -> usize {
    let bytes = prompt.text.bytes().zip(other.bytes()).take_while(|(a, b)| a == b).count();
    if let Some(tokens) = tokens_before(tokenizer, prompt, bytes) {
        return tokens;
    }
    let other = tokenizer.encode(other, AddedTokens::Parse).unwrap_or_default();
    prompt.tokens.iter().zip(&other).take_while(|(a, b)| a == b).count()
}

/// Whole tokens among the first `bytes` bytes; `None` if tokens do not spell their text byte by byte.
fn tokens_before(tokenizer: &Tokenizer, prompt: Rendered<'_>, bytes: usize) -> Option<usize> {
    let (mut end, mut count) = (0, 0);
    for (index, &token) in prompt.tokens.iter().enumerate() {
        let spelled = tokenizer.token_bytes(token)?;
        let place = prompt.text.as_bytes().get(end..end + spelled.len())?;
        if place != spelled {
            return None;
        }
        end += spelled.len();
        if end <= bytes {
            count = index + 1;
        }
    }
    (end == prompt.text.len()).then_some(count)
}
